"""Events for the tests of reports and streams: written as JSON lines, by the product's own schema."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from understudy.observers.events_schema import BY_NAME, SCHEMA_VERSION, Event

FOUNDING = "f0"
NOTHING: dict[type, Any] = {int: 0, str: "", bool: False}
BEGAN_MS = 1_700_000_000_000


class Told:
    """Gathers events; numbers them within their incarnation. Times are milliseconds from `BEGAN_MS`.

    Attributes:
        founding: of the events that are told next.
    """

    def __init__(self, group: str = "g") -> None:
        self.group = group
        self.founding = FOUNDING
        self.events: list[Event] = []
        self._numbers: dict[tuple[str, str], int] = defaultdict(int)

    def say(
        self, event: str, broker: str, at: int, offset: int = 0, epoch: int = 1, incarnation: str = "", **fields: Any
    ) -> None:
        """One event; fields that are not given have their default, or are empty."""
        kind = BY_NAME[event]
        incarnation = incarnation or (f"p{BEGAN_MS}-1" if event in FACTS else "j1-aa")
        self._numbers[broker, incarnation] += 1
        if "primary_ms" in fields:
            fields["primary_ms"] += BEGAN_MS
        own = {
            field.name: NOTHING[field.type]
            for field in msgspec.structs.fields(kind)
            if field.required and field.name not in Event.__struct_fields__
        }
        self.events.append(
            kind(
                schema=SCHEMA_VERSION,
                group=self.group,
                founding=self.founding,
                broker=broker,
                incarnation=incarnation,
                seq=self._numbers[broker, incarnation],
                epoch=epoch,
                offset=offset,
                at_ms=BEGAN_MS + at,
                **{**own, **fields},
            )
        )

    def everywhere(self, event: str, brokers: str, at: int, offset: int, epoch: int = 1, **fields: Any) -> None:
        """The same record in the journals of several brokers, each a millisecond later; ``brokers``: ids with blanks."""
        for later, broker in enumerate(brokers.split()):
            self.say(event, broker, at + later, offset, epoch, **fields)

    def transaction(
        self, tx: str, brokers: str, at: int, offset: int, took: int, epoch: int = 1, name: str = "", messages: int = 1
    ) -> int:
        """A transaction that commits; takes ``messages`` and three offsets, returns the next offset."""
        self.everywhere("open", brokers, at, offset, epoch, tx=tx)
        for place in range(messages):
            self.everywhere("enqueue", brokers, at, offset + place, epoch, tx=tx, queue="q", queue_id=1, place=place)
        prepare = offset + messages
        self.everywhere("close", brokers, at, prepare, epoch, tx=tx, events=messages)
        self.everywhere("prepare", brokers, at, prepare, epoch, tx=tx, csn=offset, name=name, primary_ms=at)
        self.everywhere("commit", brokers, at + took, prepare + 1, epoch, tx=tx, csn=offset, primary_ms=at)
        self.everywhere(
            "append", brokers, at + took, prepare + 1, epoch, first_offset=offset, count=messages + 2, sync=offset
        )
        return prepare + 2

    def write(self, folder: Path, name: str = "000000000001", *, brokers: Iterable[str] = ()) -> Path:
        """All events as ``folder/<broker>/<name>.jsonl``; then they are forgotten, and the numbers go on."""
        encode = msgspec.json.Encoder().encode_lines
        for broker in sorted({each.broker for each in self.events}.union(brokers)):
            own = [each for each in self.events if each.broker == broker]
            (folder / broker).mkdir(parents=True, exist_ok=True)
            hidden = folder / broker / f".{name}.jsonl"
            hidden.write_bytes(encode(own))
            hidden.rename(folder / broker / f"{name}.jsonl")
        self.events.clear()
        return folder


FACTS = {
    *("role", "status", "in_sync", "readiness", "blocker", "tracker_add", "tracker_clear", "expel", "admit", "bar"),
    *("promote", "step_down", "link_up", "link_down", "work_refused", "work_taken", "dropped", "applied", "confirm"),
    *("told", "deliver", "requeue"),
}
