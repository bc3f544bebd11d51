"""Crew: the clients as processes. A server of `multiprocessing` forks them from a process that has all imports done."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import attrs

from understudy.xa.core.errors import XaError
from understudy.xa.stress.client import Paused, Told, work

END_S: Final = 20.0
_PAUSE: Final = "pause"
_GO: Final = "go"
Work = Callable[[Connection, Path, str, str, Path], None]


class CrewError(XaError):
    """A client has ended by itself, or does not pause in time."""


@attrs.define
class _Member:
    """One client."""

    process: BaseProcess
    pipe: Connection
    told: list[Told] = attrs.field(factory=list)
    paused: Paused | None = None

    def drain(self) -> None:
        """Take in what the client has said. Of a killed client the last message may be cut off."""
        try:
            while self.pipe.poll():
                said = self.pipe.recv()
                if isinstance(said, Paused):
                    self.paused = said
                else:
                    self.told.append(said)
        except (EOFError, OSError):
            self.process.join(END_S)


class Crew:
    """Clients that work until they are paused or killed.

    Args:
        folder: of the log of all clients.
        profiles: file with the profile ``demo``.
        number: of clients.
        jobs: they share them in turn.
        chance: seeds the clients.
        work: what a client does; see `client.work`.
    """

    def __init__(
        self, folder: Path, profiles: Path, *, number: int, jobs: int, chance: random.Random, work: Work = work
    ) -> None:
        self._log = folder / "clients.log"
        self._work = work
        self._profiles = profiles
        self._jobs = jobs
        self._chance = chance
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["__main__", "understudy.xa.stress.client"])
        self._members = [self._started(at) for at in range(number)]

    def _started(self, number: int) -> _Member:
        ours, theirs = self._context.Pipe()
        seed = f"{self._chance.random()}"
        arguments = (theirs, self._profiles, self.job(number), seed, self._log)
        process = self._context.Process(target=self._work, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return _Member(process, ours)

    def job(self, number: int) -> str:
        """Of a client."""
        return f"stress-{number % self._jobs}"

    def __len__(self) -> int:
        return len(self._members)

    def kill(self, number: int) -> list[Told]:
        """SIGKILL; returns what the client has said since the last pause."""
        member = self._members[number]
        member.process.kill()
        member.process.join(END_S)
        member.drain()
        member.pipe.close()
        return member.told

    def start(self, number: int) -> None:
        """Put a new client of the same job in the place of a killed one."""
        self._members[number] = self._started(number)

    def pause(self, within_s: float) -> tuple[list[Told], list[Paused]]:
        """Wait until each client has paused; returns what they have said since the last pause.

        Raises:
            CrewError: one has not, or has ended.
        """
        for member in self._members:
            member.paused = None
            self._say(member, _PAUSE)
        deadline = time.monotonic() + within_s
        for number, member in enumerate(self._members):
            while member.paused is None:
                member.pipe.poll(max(deadline - time.monotonic(), 0))
                member.drain()
                if not member.process.is_alive():
                    raise CrewError(
                        f"client {number} has ended by itself, with code {member.process.exitcode}; see its log"
                    )
                if member.paused is None and time.monotonic() > deadline:
                    last = member.told[-1] if member.told else None
                    raise CrewError(
                        f"client {number} of job {self.job(number)} has not committed a transfer and recovered its job "
                        f"within {within_s:g} s; it said last: {last}"
                    )
        said = [one for member in self._members for one in member.told]
        for member in self._members:
            member.told = []
        return said, [member.paused for member in self._members if member.paused is not None]

    def go(self) -> None:
        """Let paused clients work."""
        for member in self._members:
            self._say(member, _GO)

    def close(self) -> None:
        """Kill all clients."""
        for number, member in enumerate(self._members):
            if member.process.is_alive():
                self.kill(number)

    @staticmethod
    def _say(member: _Member, wish: str) -> None:
        with contextlib.suppress(OSError):  # it has ended: `pause` finds out
            member.pipe.send(wish)
