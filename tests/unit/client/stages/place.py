"""A stage's rules, a delivery, an edge that answers steps by a script, and what a slot needs of a channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import msgspec

from understudy.client.stages import Retry
from understudy.client.stages.broker.connection import LostError
from understudy.client.stages.core import steps as do
from understudy.client.stages.core.envelope import Delivery, Envelope
from understudy.client.stages.core.handling import Rules, handle


class Order(msgspec.Struct, frozen=True):
    number: int


@attrs.frozen
class Target:
    name: str

    @property
    def queue(self) -> str:
        return self.name

    def encode(self, message: object) -> bytes:
        return msgspec.json.encode(message)

    def following(self, flow: str) -> Target | None:
        return {"checkout": SHIP}[flow] if self is CHARGE else None


CHARGE, SHIP = Target("charge"), Target("ship")
FLOWS: dict[str, Target | None] = {"checkout": CHARGE, "last": None}


def rules(**changes: Any) -> Rules:
    given: dict[str, Any] = {
        "stage": "reserve",
        "queue": "reserve",
        "once": True,
        "database": True,
        "retry": Retry(jitter=0),
        "decode": msgspec.json.Decoder(Order).decode,
        "following": FLOWS.__getitem__,
    }
    return Rules(**(given | changes))


def delivery(**changes: Any) -> Delivery:
    given: dict[str, Any] = {
        "id": "m1",
        "stage": "reserve",
        "body": b'{"number": 7}',
        "headers": {"x-stages-flow": "checkout"},
    }
    return Delivery(**(given | changes))


class Edge:
    """Answers each step, or raises: an answer may be a value, an exception, or a function of the step."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {"Claim": True, "ReadUnsent": [], "Now": 1_000} | answers
        self.steps: list[do.Step] = []

    def run(self, given: Rules, arrived: Delivery) -> list[str]:
        """The names of the steps, in their order."""
        generator = handle(given, arrived)
        try:
            step = next(generator)
            while True:
                self.steps.append(step)
                answer = self.answers.get(type(step).__name__)
                if callable(answer):
                    try:
                        answer = answer(step)
                    except Exception as error:  # noqa: BLE001  # thrown into the steps
                        answer = error
                step = generator.throw(answer) if isinstance(answer, Exception) else generator.send(answer)
        except StopIteration:
            return [type(each).__name__ for each in self.steps]

    def last(self, kind: type[Any]) -> Any:
        return [each for each in self.steps if isinstance(each, kind)][-1]


class Channel:
    """The part of a channel that a slot needs: it keeps settled messages."""

    def __init__(self) -> None:
        self.lives = True
        self.settled: list[Envelope] = []
        self.tags: list[int] = []

    async def settle(self, envelopes: Sequence[Envelope], tag: int, **_: Any) -> None:
        if not self.lives:
            raise LostError("gone")
        self.settled += envelopes
        self.tags.append(tag)

    async def give_back(self, tag: int) -> None: ...

    async def precheck(self, *, brings: bool) -> str:
        return ""


class Marker:
    def __init__(self) -> None:
        self.ids: list[str] = []

    def add(self, ids: Sequence[str]) -> None:
        self.ids += ids
