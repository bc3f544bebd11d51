"""A demo client must know what it may conclude from how a transaction ended, and must write it down in time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiormq.exceptions import ChannelClosed, ChannelInvalidStateError, ChannelPreconditionFailed, ConnectionClosed

from understudy.client.demo.mover import Mover
from understudy.client.runs.coins import split
from understudy.client.runs.session import Address, LostError, RefusedError, Session, errors_as_ours
from understudy.client.runs.tally import Tally
from understudy.client.verdicts import ClientLog, Entry, Event, History, Message, read_logs

pytestmark = pytest.mark.asyncio


class FakeTransaction:
    """commit and rollback answer, or raise what they are given."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    async def commit(self) -> None:
        if self._error is not None:
            raise self._error

    rollback = commit


class FakeChannel:
    """Enough of aio-pika's channel for one transaction; notes what was sent."""

    def __init__(self, end: BaseException | None = None, publish: BaseException | None = None) -> None:
        self.sent: list[Any] = []
        self._end = end
        self._publish = publish
        self.default_exchange = self

    async def get_underlay_channel(self) -> FakeChannel:
        return self

    def transaction(self) -> FakeTransaction:
        return FakeTransaction(self._end)

    async def publish(self, message: Any, account: str, *, mandatory: bool) -> None:
        if self._publish is not None:
            raise self._publish
        self.sent.append((account, message.headers["x-understudy-tx"], message.body))

    async def basic_ack(self, tag: int) -> None:
        self.sent.append(tag)


class Client:
    """A mover on a fake channel, and its log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tally = Tally()

    async def transact(self, channel: FakeChannel, *, on_purpose: bool = False) -> str:
        """One transaction that makes two coins; returns what of its outcome is known to be retried: the unknown name."""
        with ClientLog(self.folder / "c.jsonl", "c", self.tally.take) as log:
            session = Session([Address("127.0.0.1", 1)], "c")
            mover = Mover(session, log, ["a", "b"], Random(1), pause_s=1.0, consumes=False)
            mover._channel = channel  # type: ignore[assignment]
            try:
                await mover._transact([], [("a", 3), ("b", 4)], on_purpose=on_purpose)
            finally:
                self.unknown = mover._transactions.unknown
        return self.unknown

    def events(self) -> list[str]:
        return [entry.event.value for entry in read_logs(self.folder)]

    def rolled_back_by(self) -> str:
        return History.of(read_logs(self.folder)).transactions["c-0"].rolled_back_by


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


async def test_committed(client: Client) -> None:
    channel = FakeChannel()
    assert await client.transact(channel) == ""
    assert client.events() == ["began", "sent", "commit_sent", "committed"]
    assert channel.sent == [("a", "c-0", b'["c-0/0",3]'), ("b", "c-0", b'["c-0/1",4]')]
    transaction = History.of(read_logs(client.folder)).transactions["c-0"]
    assert transaction.makes == (Message("c-0/0", "a", 3), Message("c-0/1", "b", 4))


@pytest.mark.parametrize(
    "error", [ChannelPreconditionFailed("an in-sync backup said no"), ChannelClosed(506, "below min_insync")]
)
async def test_the_broker_says_rolled_back(client: Client, error: Exception) -> None:
    with pytest.raises(RefusedError):
        await client.transact(FakeChannel(end=error))
    assert client.events() == ["began", "sent", "commit_sent", "rolled_back"]
    assert client.rolled_back_by() == "broker"
    assert client.unknown == ""


@pytest.mark.parametrize(
    "error",
    [
        ConnectionClosed(320, "NOT_PRIMARY - b1 is a backup"),
        ConnectionResetError(104, "Connection reset by peer"),
        ChannelInvalidStateError("closed"),
        asyncio.CancelledError(),
        TimeoutError(),
        Exception(),
        ChannelClosed(541, "INTERNAL_ERROR"),
        ChannelClosed(None, None),  # closed on this side
    ],
)
async def test_no_answer_to_commit_is_unknown(client: Client, error: BaseException) -> None:
    with pytest.raises((LostError, RefusedError)):
        await client.transact(FakeChannel(end=error))
    assert client.events() == ["began", "sent", "commit_sent", "unknown"]
    assert client.unknown == "c-0"


async def test_lost_before_commit_was_sent_is_rolled_back(client: Client) -> None:
    with pytest.raises(LostError):
        await client.transact(FakeChannel(publish=ConnectionClosed(320, "NOT_PRIMARY")))
    assert client.events() == ["began", "sent", "rolled_back"]
    assert client.rolled_back_by() == "loss"
    assert client.unknown == ""


async def test_rolled_back_on_purpose(client: Client) -> None:
    await client.transact(FakeChannel(), on_purpose=True)
    assert client.events() == ["began", "sent", "rolled_back"]
    assert client.rolled_back_by() == "client"


async def test_a_rollback_whose_answer_is_lost_is_one_still(client: Client) -> None:
    with pytest.raises(LostError):
        await client.transact(FakeChannel(end=ConnectionClosed(320, "")), on_purpose=True)
    assert client.events() == ["began", "sent", "rolled_back"]
    assert client.unknown == ""


async def test_a_cancellation_from_outside_is_none_of_the_librarys() -> None:
    async def waits() -> None:
        async with errors_as_ours():
            await asyncio.Event().wait()

    task = asyncio.ensure_future(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_mistake_of_ours_is_no_loss() -> None:
    with pytest.raises(KeyError):
        async with errors_as_ours():
            raise KeyError("ours")


async def test_silence_is_a_loss() -> None:
    with pytest.raises(LostError, match="no answer"):
        async with errors_as_ours(timeout_s=0.0):
            await asyncio.Event().wait()


@pytest.mark.parametrize(("total", "parts"), [(1, 1), (1, 4), (3, 4), (4, 4), (100, 3)])
async def test_split_keeps_the_total(total: int, parts: int) -> None:
    for seed in range(20):
        amounts = split(total, parts, Random(seed))
        assert sum(amounts) == total
        assert len(amounts) == min(total, parts)
        assert min(amounts) > 0


async def test_tally_knows_when_clients_are_served_again() -> None:
    tally = Tally()

    def begin_and_commit(tx: str, began_s: float, committed_s: float) -> None:
        tally.take(Entry(client="c", number=0, at_s=began_s, event=Event.BEGAN, tx=tx))
        tally.take(Entry(client="c", number=1, at_s=committed_s, event=Event.COMMITTED, tx=tx))

    begin_and_commit("t0", 1.0, 1.1)
    tally.killed(2.0)
    begin_and_commit("t1", 1.9, 2.1)
    assert not tally.served
    begin_and_commit("t2", 2.2, 2.5)
    assert tally.failover_s == pytest.approx(0.5)
    assert tally.rate(2.5) == pytest.approx(1.5)
    assert tally.asking == 0
