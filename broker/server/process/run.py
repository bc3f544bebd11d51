"""From a configuration file to an exit code: what ``understudy serve`` and ``python -m understudy.broker.server`` do."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import structlog
import uvloop

from understudy.broker.config import ConfigError, given_by, load
from understudy.broker.errors import UnderstudyError
from understudy.broker.log.journal_gate import UnknownNoteError
from understudy.broker.octets import checksum
from understudy.broker.plugin_api.plugin import PluginError
from understudy.broker.server.files.exposed_files import warn_of_exposed
from understudy.broker.server.files.private_files import keep_private
from understudy.broker.server.files.watched_files import WatchedFiles
from understudy.broker.server.process import fatal
from understudy.broker.server.process.broker_server import BrokerServer
from understudy.broker.server.process.exit_codes import ExitCode
from understudy.broker.server.process.interpreter import interpreter
from understudy.broker.server.process.log_setup import LogFormat, configure_logging
from understudy.broker.server.process.standard_streams import fill_standard_streams
from understudy.broker.server.sockets.listener import TlsError, raise_descriptor_limit

SWITCH_INTERVAL_S = 0.0005
"""The sync thread must not wait Python's usual 5 ms for the interpreter to say that a group is on the disk."""

_CONFIG_ERRORS = (ConfigError, PluginError, TlsError, UnknownNoteError)


def serve(path: Path, *, log_format: LogFormat = "text", log_level: str = "info", supervised: bool = False) -> ExitCode:
    """Run the broker that the file at ``path``, and the environment, describe until it is asked to stop.

    Returns:
        OK after SIGTERM or SIGINT; REFUSED or CONFIG with one line on stderr if it did not start. INTERNAL and DISK never come
        back: they end the process where they happen.
    """
    fill_standard_streams()
    try:
        keep_private()
        # A supervisor has written a whole file for each broker; what is in its environment would be the same for all of them.
        variables = {} if supervised else os.environ
        watched = WatchedFiles("users of the configuration are", "users", [path], lambda: load(path, variables))
        config = watched.made
        configure_logging(log_format, log_level, broker=config.broker.id)
        structlog.get_logger().info("interpreter", **interpreter(), checksums=checksum.SOURCE)
        warn_of_exposed(path, config, {each.key for each in given_by(variables)})
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        raise_descriptor_limit()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(BrokerServer(config, supervised=supervised, watched=watched).run())
    except _CONFIG_ERRORS as error:
        return _refused(error, ExitCode.CONFIG)
    except (UnderstudyError, OSError) as error:
        return _refused(error, ExitCode.REFUSED)
    except Exception as error:  # noqa: BLE001  # no error of an operator's or of the machine: ours
        fatal.crashed("start or stop", error)
    return ExitCode.OK


def _refused(error: Exception, code: ExitCode) -> ExitCode:
    text = str(error) if isinstance(error, UnderstudyError) else f"{type(error).__name__}: {error}"
    print(f"understudy: {text}", file=sys.stderr, flush=True)  # noqa: T201  # the one line that says why
    return code
