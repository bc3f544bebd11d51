"""A program that makes transfers under a job until it is killed. It can be paused when nothing of it is left undecided.

It says over a pipe what became of each transfer, as `Told`, and `Paused` when it has paused.
"""

from __future__ import annotations

import contextlib
import enum
import multiprocessing
import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import attrs
import psycopg
from amqp.exceptions import AMQPError

from understudy.xa.active import Transaction
from understudy.xa.core.errors import HeuristicError, OutcomeUnknownError, XaError
from understudy.xa.demo.books import ACCOUNTS, deposit, withdraw
from understudy.xa.manager import TransactionManager

AGAIN_S: Final = 0.02
"""After an error, before the next try."""
DEPOSITS: Final = 0.55
"""Share of transfers out of the queue: more than half, so that the queue stays short."""


class Verdict(enum.Enum):
    """The program's knowledge of a transaction.

    COMMITTED: it is committed, at once or by recovery.
    ABSENT: it is not, and never will be.
    UNKNOWN: the answer to its decision is lost.
    HEURISTIC: a resource manager decided on its own; no operator is here, so this is wrong.
    """

    COMMITTED = "committed"
    ABSENT = "rolled back"
    UNKNOWN = "unknown"
    HEURISTIC = "heuristic"


@attrs.frozen
class Told:
    """One transaction is over.

    Attributes:
        text: of the error, if there was one.
    """

    gid: str
    verdict: Verdict
    text: str = ""


@attrs.frozen
class Paused:
    """The client has committed a transfer since it was asked, and its job has nothing to recover.

    Attributes:
        recovered: transactions that this client has completed for its job by an explicit recovery.
        refused: how often no transaction could begin since the last pause, and why last.
    """

    recovered: int
    refused: int
    last: str


def work(pipe: Connection, profiles: Path, job: str, seed: str, log: Path) -> None:
    """Be a client. Returns when the other side of the pipe is gone."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    manager = TransactionManager.from_file(profiles, "demo", job=job)
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        _Client(pipe, manager, random.Random(seed)).run()  # noqa: S311  # money of a test


class _Client:
    """One thread of transfers."""

    def __init__(self, pipe: Connection, manager: TransactionManager, chance: random.Random) -> None:
        self._pipe = pipe
        self._manager = manager
        self._chance = chance
        self._refused = 0
        self._last = ""

    def run(self) -> None:
        while True:
            self._transfer()
            if self._pipe.poll():
                self._pipe.recv()  # the wish to pause
                self._pause()
                self._pipe.recv()  # the wish to go on

    def _pause(self) -> None:
        recovered = None
        while not self._transfer():
            pass
        while recovered is None:
            try:
                recovered = len(self._manager.recover())
            except (XaError, OSError) as error:
                self._wait(error)
        self._pipe.send(Paused(recovered, self._refused, self._last))
        self._refused = 0

    def _transfer(self) -> bool:
        """One transfer; True if it was committed."""
        account, amount = self._chance.randint(1, ACCOUNTS), self._chance.randint(1, 9)
        try:
            transaction = self._manager.begin()
        except (XaError, OSError) as error:
            self._wait(error)
            return False
        try:
            with transaction:
                self._move(transaction, account, amount)
        except OutcomeUnknownError as error:
            told = Told(transaction.gid, Verdict.UNKNOWN, str(error))
        except HeuristicError as error:
            told = Told(transaction.gid, Verdict.HEURISTIC, str(error))
        except (XaError, psycopg.Error, AMQPError, OSError) as error:
            told = Told(transaction.gid, Verdict.ABSENT, str(error))
        else:
            told = Told(transaction.gid, Verdict.COMMITTED)
        self._pipe.send(told)
        return told.verdict is Verdict.COMMITTED

    def _move(self, transaction: Transaction, account: int, amount: int) -> None:
        if self._chance.random() >= DEPOSITS or not deposit(transaction, account):
            withdraw(transaction, account, amount)

    def _wait(self, error: Exception) -> None:
        self._refused += 1
        self._last = f"{type(error).__name__}: {error}"
        if (parent := multiprocessing.parent_process()) is not None and not parent.is_alive():
            raise EOFError("the program that has started this client is gone")
        time.sleep(AGAIN_S)
