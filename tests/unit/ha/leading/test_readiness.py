"""Reasons of a backup that is not ready: queue, transaction, how many are left."""

from __future__ import annotations

from itertools import product
from typing import Any

import attrs
import pytest

from understudy.broker.core.state import BrokerState
from understudy.broker.log import record
from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.ha.leading.backup_readiness import BackupReadiness
from understudy.ha.leading.remote_backup import RemoteBackup
from understudy.ha.showing.feed_facts import HaFacts
from understudy.replicator import wire
from understudy.replicator.receiving.refill import Refill
from understudy.replicator.sending.log_sender import LogSender


class SilentLink:
    """A link on which nothing is said."""

    peer = "b3"
    wire_version = newest_record_format = 1

    def send(self, message: bytes) -> None:
        """Into the void."""

    def close(self, reason: str) -> None:
        """Close nothing."""


JOINER = BackupReadiness(
    broker="b3",
    listed=False,
    linked=True,
    catching_up=True,
    guarded=False,
    lag_records=0,
    queues=(),
    transactions=(),
    since_ms=0,
    leaving="",
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"listed": True, "catching_up": False}, []),
        ({"listed": True, "leaving": "it is silent"}, ["is to leave the in-sync set: it is silent"]),
        ({"listed": True, "linked": False}, ["its link is lost: completions wait for it"]),
        (
            {"listed": True, "linked": False, "ever_linked": False},
            ["it is not linked: completions wait for it"],
        ),
        (
            {"listed": True, "linked": False, "leaving": "it is silent"},
            ["is to leave the in-sync set: it is silent", "its link is lost: completions wait for it"],
        ),
        ({"linked": False, "guarded": True, "lag_records": 7}, ["it is not linked: completions wait for it"]),
        ({"linked": False, "lag_records": 7}, ["it is not linked"]),
        (
            {"linked": False, "running": False, "expelled": "it was silent"},
            [
                "it is not linked, and the store says that it is not running",
                "it was expelled from the in-sync set: it was silent",
            ],
        ),
        ({"leaving": "its disk is nearly full"}, ["its disk is nearly full"]),
        ({}, ["catching up"]),
        ({"catching_up": False, "lag_records": 7}, ["7 log records behind"]),
        ({"catching_up": False}, ["waits to be added to the in-sync set"]),
        (
            {
                "queues": (("a", 5), ("b", 1)),
                "transactions": (("1.2", "a", 3),),
                "tx_queues": (("1.2", "understudy.tx.1.2", 7),),
            },
            [
                "queue 'a': 5 messages to come",
                "queue 'b': 1 messages to come",
                "transaction 1.2: 7 events of queue 'understudy.tx.1.2' to come",
                "transaction 1.2: 3 ids of queue 'a' to come",
            ],
        ),
        (
            {"queues": tuple((f"q{n}", n) for n in range(1, 6))},
            [
                "queue 'q1': 1 messages to come",
                "queue 'q2': 2 messages to come",
                "queue 'q3': 3 messages to come",
                "2 more queues: 9 messages to come",
            ],
        ),
    ],
)
def test_words(changes: dict[str, Any], words: list[str]) -> None:
    assert attrs.evolve(JOINER, **changes).blockers() == words


def test_a_transaction_that_it_lacks_is_named_with_its_queue() -> None:
    state = BrokerState()
    queue_id, tx_id = 1 << ID_EPOCH_SHIFT | 4, 1 << ID_EPOCH_SHIFT | 45
    declare = record.encode_queue_declare(queue_id, "/", "orders", record.DURABLE, b"\0\0\0\0")
    Refill(state).declare([declare], 1, 0)
    tx = TxBuffer(tx_id)
    tx.add(1, None, [(queue_id, [7, 8])], b"", False)
    backup = RemoteBackup("b3", False, 0)
    backup.linked(SilentLink(), 0)
    backup.trackers.track(tx, {})
    assert backup.readiness(state).blockers() == ["transaction 1.45: 2 ids of queue 'orders' to come"]


def test_since_is_when_it_linked_or_when_it_lost_its_link() -> None:
    backup = RemoteBackup("b3", True, 1_000)
    assert backup.since_ms == 1_000
    backup.unlinked(1_500)
    assert backup.since_ms == 1_000, "it has had no link to lose"
    backup.linked(SilentLink(), 2_000)
    backup.unlinked(3_000)
    assert backup.since_ms == 3_000
    backup.unlinked(4_000)
    assert backup.since_ms == 3_000, "what was lost is not lost again"
    backup.linked(SilentLink(), 5_000)
    backup.resumed(0, LogSender(BrokerState().log, 0, 1), None)
    backup.linked(SilentLink(), 6_000)
    assert backup.since_ms == 6_000
    shown = backup.readiness(BrokerState())
    assert (shown.linked, shown.ever_linked, shown.since_ms) == (True, True, 6_000)


def test_a_status_may_be_long() -> None:
    text = "queue " + "ä" * 2000
    assert wire.decode_status(wire.encode_status(text)) == text


def test_messages_that_promise_nothing_do_not_block_a_backup_that_is_ready() -> None:
    """A member of the set that was restarted is sent what is transient anew. It is ready meanwhile, in each face of the row."""
    told: list[tuple[str, dict[str, object]]] = []
    facts = HaFacts(ToldFacts(told))  # type: ignore[arg-type]
    row = attrs.evolve(JOINER, listed=True, catching_up=False, queues=(("q", 3),), tx_queues=(("1.2", "q", 1),))
    assert row.is_ready
    assert not any(row.counts().values())
    facts.look([row])
    assert told == [("readiness", {"backup": "b3", "ready": True, "listed": True, "linked": True, "blockers": 0})]
    facts.look([attrs.evolve(row, listed=False)])
    assert [name for name, _ in told[1:]] == ["readiness", "blocker", "blocker"]


class ToldFacts:
    """Keeps what is told."""

    def __init__(self, told: list[tuple[str, dict[str, object]]]) -> None:
        self._told = told

    def tell(self, event: str, **values: object) -> None:
        self._told.append((event, values))

    def tx_text(self, tx: str) -> str:
        return tx


def test_blockers_explain_the_rule_of_readiness_and_add_nothing_to_it() -> None:
    """In each combination of what a row says: words, counts and facts are empty if and only if the backup is ready."""
    flags = ("listed", "linked", "ever_linked", "running", "catching_up", "guarded")
    texts = ("leaving", "barred", "expelled", "")
    changes: list[dict[str, Any]] = [
        {**dict(zip(flags, row, strict=True)), "lag_records": lag, "queues": queues, **({text: "why"} if text else {})}
        for row, lag, queues, text in product(
            product((False, True), repeat=len(flags)), (0, 7), ((), (("a", 5),)), texts
        )
    ]
    rows = [attrs.evolve(JOINER, **each) for each in changes]
    for row in rows:
        ready = row.listed and row.linked and not row.leaving and not row.barred
        assert row.is_ready is ready
        assert (not row.blockers()) is ready
        assert (not any(row.counts().values())) is ready
    assert sum(row.is_ready for row in rows) == 2**4 * 2 * 2 * 2
