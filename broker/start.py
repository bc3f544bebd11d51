"""The console script ``understudy``: where a process begins.

A broker needs none of the library that reads the options of all other commands: importing it costs a quarter of the CPU of a
broker's start, and it stays in memory. So ``understudy serve`` goes where ``python -m understudy.broker.server`` goes.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell has it: 128 and the number of SIGINT."""


def main() -> None:
    """Run the command line; ends the process.

    Ctrl-C ends it without a traceback, while it still imports what the command needs, too. A command that ends in another way
    has a handler of its own by then.
    """
    try:
        _main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _main() -> None:
    name, *rest = sys.argv[1:] or [""]
    if name == "serve" and not {"-h", "--help"} & {*rest}:
        from understudy.broker.server.__main__ import run  # noqa: PLC0415  # other commands need no broker

        sys.exit(run("understudy serve", rest))
    from understudy.broker.cli import main as command_line  # noqa: PLC0415  # see above

    command_line()
