"""A relay over a real file: a message that cannot be sent holds up no other, and nothing leaves without its mark."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from understudy.client.stages import sqlite
from understudy.client.stages.broker.channel import TxChannel
from understudy.client.stages.broker.clock import now_ms
from understudy.client.stages.broker.connection import LostError
from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.slots import relay
from understudy.client.stages.slots.relay import Relay
from understudy.client.stages.watching.points import pass_by


class Broker:
    """Messages that are committed, and channels that refuse some messages: a channel keeps what it was sent before."""

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.refuses: dict[str, Exception] = {}
        self.precheck = ""
        self.opened = 0

    async def open(self, _: object) -> Channel:
        self.opened += 1
        return Channel(self)


class Channel:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.lives = True
        self.uncommitted: list[str] = []

    async def settle(self, envelopes: Sequence[Envelope]) -> None:
        assert self.lives
        for each in envelopes:
            if error := self.broker.refuses.get(each.id):
                self.lives = not isinstance(error, LostError)
                raise error
            self.uncommitted.append(each.id)
        self.broker.queue += self.uncommitted
        self.uncommitted.clear()

    async def precheck(self, *, brings: bool) -> str:
        assert brings
        return self.broker.precheck

    async def close(self) -> None:
        self.lives = False


class Place:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        database = sqlite(folder / "shop.db")
        database.prepare()
        self.broker = Broker()
        monkeypatch.setattr(TxChannel, "open", self.broker.open)
        self.session: Any = database.relay_session()
        self.relay = Relay(None, self.session, None, pass_by, grace_s=-1, lease_s=60)  # type: ignore[arg-type]

    async def store(self, *ids: str) -> None:
        made = [Envelope(id=each, queue=f"q{each}", stage="s", body=b"body", headers={}) for each in ids]
        await self.session.begin()
        await self.session.store("s", ids[0], made, now_ms())
        await self.session.commit()

    async def rounds(self) -> None:
        while await self.relay._round():
            pass

    async def left(self) -> list[str]:
        await self.session.begin()
        rows = await self.session.run("SELECT id FROM understudy_outbox ORDER BY seq", ())
        await self.session.rollback()
        return [row[0] for row in rows]

    async def end_leases(self) -> None:
        await self.session.begin()
        await self.session.run("UPDATE understudy_outbox SET leased_until_ms = 0", ())
        await self.session.commit()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(tmp_path, monkeypatch)
    yield made
    asyncio.run(made.session.close())


@pytest.mark.parametrize(
    "error", [ValueError("a queue's name of 300 octets"), LostError("406: a body above the limit")]
)
def test_a_message_that_cannot_be_sent_holds_up_no_other(
    place: Place, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        await place.store("1", "2", "bad", "3")
        place.broker.refuses["bad"] = error
        await place.rounds()
        assert place.broker.queue == ["1", "2", "3"]
        assert await place.left() == ["bad"]
        await place.end_leases()
        await place.store("4", "5")
        opened = place.broker.opened
        await place.rounds()
        assert place.broker.queue == ["1", "2", "3", "4", "5"]
        assert await place.left() == ["bad"]
        assert place.broker.opened == opened  # the others left together
        place.broker.refuses.clear()
        await place.end_leases()
        await place.rounds()
        assert place.broker.queue[5:] == ["bad"]
        assert await place.left() == []
        assert place.relay._failing == {}

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert f"cannot send message bad for queue qbad, a body of 4 octets; it stays in the outbox: {error}" in caplog.text


def test_many_messages_that_cannot_be_sent_starve_no_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MOST", 2)
    monkeypatch.setattr(relay, "MOST_FAILING", 4)

    async def run() -> None:
        bad = [f"bad{number}" for number in range(6)]
        for each in (*bad, "1"):
            await place.store(each)
        place.broker.refuses = dict.fromkeys(bad, ValueError("no"))
        await place.rounds()
        assert place.broker.queue == ["1"]
        assert await place.left() == bad
        assert list(place.relay._failing) == bad[2:]

    asyncio.run(run())


def test_a_broker_that_takes_no_commit_is_no_fault_of_a_message(place: Place) -> None:
    async def run() -> None:
        await place.store("1", "2")
        place.broker.refuses = dict.fromkeys(("1", "2"), LostError("refused"))
        place.broker.precheck = "too few backups"
        with pytest.raises(LostError, match="would refuse a commit: too few backups"):
            await place.relay._round()
        assert place.relay._failing == {}
        assert await place.left() == ["1", "2"]

    asyncio.run(run())
