"""The two faces of a client's connection, `connect` and `connect_async`, under one face for tests: that of threads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

from tests.integration.cut_link import CutLink
from understudy.client import Outcome, TransactionUnknown, connect, connect_async

COMMIT = bytes.fromhex("00000004005a0014ce")
"""The end of a frame with tx.commit, and of one with tx.commit-ok."""
COMMIT_OK = bytes.fromhex("00000004005a0015ce")

Open = Callable[..., contextlib.AbstractContextManager[Any]]


class Awaited:
    """An object whose coroutines and asynchronous contexts are run by a runner, so that they look like those of threads."""

    def __init__(self, runner: asyncio.Runner, inner: Any) -> None:
        self._runner = runner
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return (lambda *args, **named: self.here(found(*args, **named))) if callable(found) else found

    def __enter__(self) -> Any:
        return self.here(self._run(self._inner.__aenter__()))

    def __exit__(self, *about: object) -> Any:
        return self._run(self._inner.__aexit__(*about))

    def __iter__(self) -> Iterator[Any]:
        while (message := self.next()) is not None:
            yield message

    def _run(self, awaited: Any) -> Any:
        async def answered() -> Any:
            return await awaited

        return self._runner.run(answered())

    def here(self, made: Any) -> Any:
        if asyncio.iscoroutine(made):
            return self.here(self._run(made))
        return Awaited(self._runner, made) if hasattr(made, "__aenter__") or hasattr(made, "__aiter__") else made


@contextlib.contextmanager
def of_threads(*args: Any, **named: Any) -> Iterator[Any]:
    with connect(*args, **named) as connection:
        yield connection


@contextlib.contextmanager
def of_asyncio(*args: Any, **named: Any) -> Iterator[Any]:
    with asyncio.Runner() as runner, Awaited(runner, connect_async(*args, **named)) as connection:
        yield connection


def answer(connection: Any, unknown: TransactionUnknown) -> Outcome:
    """The outcome that the error itself asks for."""
    asked = unknown.outcome()
    found: Outcome = connection.here(asked) if isinstance(connection, Awaited) else asked
    return found


class CommitCut(CutLink):
    """Cuts the connection at a commit: before the broker has it, or when the broker has answered it."""

    def __init__(self, target: int, *, answered: bool) -> None:
        self._answered = answered
        self.cuts = 0
        self.active = True
        super().__init__(target)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        wanted = COMMIT_OK if self._answered else COMMIT
        with contextlib.suppress(OSError):
            while octets := source.recv(65536):
                if self.active and wanted in octets:
                    self.active = False
                    self.cuts += 1
                    break
                target.sendall(octets)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
