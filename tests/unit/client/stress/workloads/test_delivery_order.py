"""One consumer gets one producer's messages in order; what was delivered before may come again."""

from __future__ import annotations

import pytest

from understudy.client.stress.workloads.delivery_order import misdelivered
from understudy.client.verdicts import Entry, Event, Kind, Message


def entries(*events: str, client: str = "consumer-00") -> list[Entry]:
    """``connect``, or the number of a message of producer p: ``3`` delivered for the first time, ``3r`` redelivered."""
    found = []
    for number, event in enumerate(events):
        if event == "connect":
            found.append(Entry(client=client, number=number, event=Event.CONNECTED, broker="b1"))
        else:
            message = Message(f"p-{event.rstrip('r')}/0", "q")
            again = event.endswith("r")
            found.append(
                Entry(client=client, number=number, event=Event.RECEIVED, messages=(message,), redelivered=again)
            )
    return found


@pytest.mark.parametrize(
    "events",
    [
        ("connect", "1", "2", "4"),
        ("connect", "1", "2", "connect", "1r", "2r", "3"),  # unacknowledged when the connection ended
        ("connect", "1", "2", "connect", "1r", "2r", "4", "connect", "3r", "5"),  # 3 was lost on its way
    ],
)
def test_order(events: tuple[str, ...]) -> None:
    assert misdelivered(entries(*events)) == []


@pytest.mark.parametrize(
    ("events", "late"),
    [
        (("connect", "1", "3", "2"), "p-2/0"),
        (("connect", "1", "3", "2r"), "p-2/0"),
        (("connect", "1", "3", "connect", "2"), "p-2/0"),  # never delivered before, and passed over
    ],
)
def test_disorder(events: tuple[str, ...], late: str) -> None:
    (violation,) = misdelivered(entries(*events))
    assert (violation.kind, violation.promise, violation.message) == (Kind.UNORDERED, "G9", late)
    assert "p-3/0" in violation.text


def test_others_than_consumers_are_not_judged() -> None:
    assert misdelivered(entries("connect", "3", "2", client="mover-01")) == []
