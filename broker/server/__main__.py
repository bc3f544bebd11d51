"""``understudy serve``, and ``python -m understudy.broker.server``: one broker, without the library of the other commands.

`understudy cluster` starts its brokers as the module, with ``--supervised``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import understudy.broker.plain_structlog  # noqa: F401  # before all that logs
from understudy.broker.server.process.log_setup import LEVELS
from understudy.broker.server.process.run import serve


def run(program: str, arguments: Sequence[str], *, as_module: bool = False) -> int:
    """Read the options, and run the broker until it is asked to stop.

    Args:
        program: what errors call it.
        arguments: the options.
        as_module: ``--supervised`` is one of them.

    Returns:
        The exit code. Options that cannot be used end the process with code 2.
    """
    parser = argparse.ArgumentParser(prog=program, allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--log-format", choices=["text", "json"], default="text")
    parser.add_argument("--log-level", choices=list(LEVELS), default="info")
    if as_module:
        parser.add_argument("--supervised", action="store_true", help="see BrokerServer")
    options = parser.parse_args(arguments)
    supervised = as_module and options.supervised
    return serve(options.config, log_format=options.log_format, log_level=options.log_level, supervised=supervised)


if __name__ == "__main__":
    sys.exit(run("python -m understudy.broker.server", sys.argv[1:], as_module=True))
