"""``python -m understudy.observers.feed.edge.process``: ``understudy feed`` as a broker runs it, until its standard input ends.

A broker holds the other end of that pipe, so its end is the end of this process, whatever became of the broker. A thread waits for
it, since the feed itself looks at journals.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import typer

import understudy.broker.plain_structlog  # noqa: F401  # before all that logs
from understudy.broker.server.files.private_files import keep_private
from understudy.observers.edge.side_process import stand_back
from understudy.observers.feed.edge.command import feed


def _until_the_broker_ends() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run it."""
    keep_private()
    stand_back()
    threading.Thread(target=_until_the_broker_ends, daemon=True).start()
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(feed)
    app()


if __name__ == "__main__":
    main()
