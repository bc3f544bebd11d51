"""A transaction manager without I/O: generators run against scripted resource managers and the state server's core."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from understudy.xa.core.errors import StateServerLostError
from understudy.xa.core.manager.recovery import recover
from understudy.xa.core.manager.steps import Steps, Tell, Verb, Wait
from understudy.xa.core.manager.transaction import GlobalTransaction
from understudy.xa.core.register.entry import Entry
from understudy.xa.core.register.state import StateCore
from understudy.xa.core.register.wire import WIRE_VERSION, Claim, Claimed, Hello, Ok, Reply, Request
from understudy.xa.core.xid import resource_of
from understudy.xa.resource_managers.scripted import ScriptedResource

_T = TypeVar("_T")
NOW_MS = 1_700_000_000_000
JOB = "job"


def hello(job: str = JOB, fingerprint: str = "f") -> Hello:
    return Hello(WIRE_VERSION, job, "profile", fingerprint)


class Rig:
    """One client of one state server.

    Args:
        scripts: resource manager to its script.
        lost: requests, by name, whose reply is lost; with a dash before it the request does not arrive either.
    """

    def __init__(self, *, lost: str = "", core: StateCore | None = None, **scripts: str) -> None:
        self.core = core or StateCore([{}])
        self.resources = {name: ScriptedResource(name, {"script": script}) for name, script in scripts.items()}
        self.trace: list[str] = []
        self.lost = lost
        self.waits = 0
        self.now_ms = NOW_MS
        self.carry_out: Callable[[Any], Any] = self._carried_out
        self._connection = next(_connections)
        assert self.say(hello()) == Ok()

    def say(self, request: Request) -> Reply:
        return self.core.received(self._connection, request, self.now_ms).reply

    def transaction(self, number: int = 1) -> GlobalTransaction:
        return GlobalTransaction(f"{number:064x}", JOB)

    def begun(self, number: int = 1) -> GlobalTransaction:
        transaction = self.transaction(number)
        self.run(transaction.begin(self.resources))
        return transaction

    def run(self, steps: Steps[_T]) -> _T:
        try:
            step = next(steps)
            while True:
                try:
                    answer = self.carry_out(step)
                except StateServerLostError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: _T = end.value
            return result

    def _carried_out(self, step: Any) -> Any:
        if isinstance(step, Wait):
            self.waits += 1
            return None
        self.trace.append(step.label)
        if isinstance(step, Verb):
            return self.resources[resource_of(step.resource)].call(step)
        assert isinstance(step, Tell)
        name = step.label.removeprefix("tell.")
        if name == self.lost.removeprefix("-"):
            if not self.lost.startswith("-"):
                self.say(step.request)
            self.leave()
            raise StateServerLostError("lost")
        return self.say(step.request)

    def leave(self) -> None:
        """The connection to the state server ends."""
        self.core.left(self._connection)
        self._connection = next(_connections)

    def claimed(self, *, early: bool = False) -> Entry | None:
        """A new connection of the job claims what waits."""
        self._connection = next(_connections)
        self.say(hello())
        reply = self.say(Claim(early))
        return reply.entry if isinstance(reply, Claimed) else None

    def recovered(self) -> dict[str, str]:
        """All that waits is recovered; the answers of the last one."""
        answers: dict[str, str] = {}
        while (entry := self.claimed(early=True)) is not None:
            answers = {name: answer.code.name for name, answer in self.run(recover(entry)).items()}
        return answers

    def called(self, name: str) -> list[str]:
        return [call.name.value for call in self.resources[name].calls]


_connections = itertools.count(1)
