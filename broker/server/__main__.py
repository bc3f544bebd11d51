"""``python -m understudy.broker.server --config FILE``: ``understudy serve`` without a command line library.

It is how ``understudy cluster`` starts brokers, where 60 ms for each import of typer would be paid by all at once.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import understudy.broker.plain_structlog  # noqa: F401  # before all that logs
from understudy.broker.server.log_setup import LEVELS
from understudy.broker.server.run import serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m understudy.broker.server")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--log-format", choices=["text", "json"], default="text")
    parser.add_argument("--log-level", choices=list(LEVELS), default="info")
    parser.add_argument("--supervised", action="store_true", help="see BrokerServer")
    options = parser.parse_args()
    return serve(
        options.config, log_format=options.log_format, log_level=options.log_level, supervised=options.supervised
    )


if __name__ == "__main__":
    sys.exit(main())
