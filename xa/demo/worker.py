"""A program that makes transfers until SIGTERM: ``python -m understudy.xa.demo.worker xa.toml``, under its job.

It writes down each outcome as a line of JSON on standard output.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from types import FrameType
from typing import Final

import psycopg
from amqp.exceptions import AMQPError

from understudy.xa.core.errors import XaError
from understudy.xa.demo.books import ACCOUNTS, deposit, withdraw
from understudy.xa.manager import TransactionManager

PAUSE_S: Final = 0.1
"""After an error, before the next try."""


class Worker:
    """One thread of transfers."""

    def __init__(self, path: str) -> None:
        self._manager = TransactionManager.from_file(path, "demo")
        self._stopping = False

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def run(self) -> None:
        while not self._stopping:
            try:
                self._transfer()
            except (XaError, psycopg.Error, AMQPError, OSError) as error:
                _say(type(error).__name__, str(error))
                time.sleep(PAUSE_S)
        self._manager.close()

    def _transfer(self) -> None:
        account, amount = random.randint(1, ACCOUNTS), random.randint(1, 9)  # noqa: S311  # money of a demo
        with self._manager.begin() as transaction:
            if random.random() < 0.5 or not deposit(transaction, account):  # noqa: S311  # as above
                withdraw(transaction, account, amount)
        assert transaction.outcome is not None
        _say(transaction.outcome.value)


def _say(outcome: str, text: str = "") -> None:
    print(json.dumps({"outcome": outcome, "text": text}), flush=True)  # noqa: T201  # its log


if __name__ == "__main__":
    worker = Worker(sys.argv[1])
    signal.signal(signal.SIGTERM, worker.stop)
    worker.run()
