"""Events of made feeds: what three brokers would say of a clean run with one failover, each event a formula of its place.

Transaction k brings ``2 * HALF`` messages to two queues, and takes those of transaction k-1. Its log records are
consecutive; PREPARE is stable when COMMIT is written; the batch that brings transaction k+1 tells that k is applied.
Every broker has every record. In the middle b1 is replaced by b2. b1, then b2, tell each delivery and each answer.

A row is a dict with the fields that its event has, and two more: ``k`` (transaction; -1 for what is of none) and ``step`` (as in
`STEPS`, or the event). `tests.pipeline.plants` changes rows, so that a promise is broken at a known place. `made_feed` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from tests.pipeline.restated import restated
from understudy.observers.events_schema import SCHEMA_VERSION

Row = dict[str, Any]
Rows = list[Row]

BROKERS: Final = ("b1", "b2", "b3")
HALF: Final = 5
MESSAGES: Final = 2 * HALF
QUEUES: Final = 8
LOG: Final = 2 * MESSAGES + 2
"""Places of the log that a transaction takes: messages, takes, PREPARE, COMMIT."""
AT_MS: Final = 1_800_000_000_000
FOUNDING: Final = "f0f0"
HEAD_FACTS: Final = 6
"""Facts of a process before those of transactions."""
SHIFT: Final = 40
DIGESTS: Final = 10_000_000

STEPS: Final = (
    "applied_tx",
    "applied_to",
    "open",
    *("enqueue",) * MESSAGES,
    *("dequeue",) * MESSAGES,
    "close",
    "prepare",
    "assign",
    "assign",
    "append",
    "applied_before",
    "commit",
    "append_commit",
)
"""What a broker's feed says of a transaction, in order; the first two are of the transaction before."""
_NAMES: Final = {"applied_tx": "apply", "applied_to": "apply", "applied_before": "apply", "append_commit": "append"}


@attrs.frozen(kw_only=True)
class Size:
    """How large a feed is.

    Attributes:
        segment: transactions of one segment.
        segments: of each broker; an even number: the failover stands between two.
        planted: the transaction at which plants break a promise; 0: they choose one.
    """

    segment: int
    segments: int
    planted: int = 0

    @classmethod
    def of(cls, events: int) -> Size:
        """At least so many events."""
        each = len(BROKERS) * len(STEPS) + MESSAGES + 1
        transactions = -(-events // each)
        segments = max(2, min(200, transactions // 5_000 * 2))
        return cls(segment=-(-transactions // segments), segments=segments)

    @property
    def transactions(self) -> int:
        return self.segment * self.segments

    @property
    def half(self) -> int:
        """The first transaction of the second epoch."""
        return self.transactions // 2


# -- formulas; k is a transaction ---------------------------------------------------------------------------------------


def base(k: int, size: Size) -> int:
    """Offset of its first record."""
    return k * LOG + QUEUES + 2 + (k >= size.half)


def prepare_of(k: int, size: Size) -> int:
    return base(k, size) + 2 * MESSAGES


def commit_of(k: int, size: Size) -> int:
    return base(k, size) + 2 * MESSAGES + 1


def epoch_of(k: int, size: Size) -> int:
    return 1 + (k >= size.half)


def epoch_two_at(size: Size) -> int:
    """Offset of the second EPOCH."""
    return base(size.half, size) - 1


def tx_of(k: int, size: Size) -> str:
    return f"{FOUNDING}/{epoch_of(k, size)}.{k + 1}"


def first_id(k: int, size: Size) -> int:
    """Of the ids that it gives in each of its two queues."""
    return epoch_of(k, size) * (1 << SHIFT) + 1 + k * HALF


def queue_of(k: int, second: int) -> int:
    """Number of a queue, from 1: of the first or the second half of its messages."""
    return (k + second) % QUEUES + 1


def process_of(broker: str) -> str:
    """Its incarnation of facts."""
    return f"p{AT_MS - 1000}-{BROKERS.index(broker) + 1}"


# -- rows -------------------------------------------------------------------------------------------------------------


def made(size: Size) -> Rows:
    """All events, with their digests."""
    return restated([*rare(size), *(row for k in range(size.transactions) for row in of_transaction(k, size))])


def of_transaction(k: int, size: Size) -> Iterator[Row]:
    """Rows of all brokers about a transaction."""
    for broker in BROKERS:
        yield from records(broker, k, size)
    yield from facts(k, size)


def records(broker: str, k: int, size: Size) -> Iterator[Row]:
    """Rows of a broker's journal about a transaction."""
    segment, place = divmod(k, size.segment)
    head = {**_head(broker, k, size), "incarnation": journal_of(broker, segment)}
    first = 2 + _extra(segment, size) + place * len(STEPS)
    for j, (step, fields) in enumerate(zip(STEPS, _records(k, size), strict=True)):
        known = step if fields.get("event") is None else "nothing"
        yield {**head, "k": k, "step": known, "event": _NAMES.get(step, step), "seq": first + j, **fields}


def _head(broker: str, k: int, size: Size) -> Row:
    of_group = {"schema": SCHEMA_VERSION, "group": "made", "founding": FOUNDING}
    return {**of_group, "broker": broker, "epoch": epoch_of(k, size), "at_ms": AT_MS + k}


def journal_of(broker: str, segment: int) -> str:
    """The incarnation of a segment, which is counted from 0."""
    return f"j{segment + 1}-5a17{BROKERS.index(broker)}"


def _extra(segment: int, size: Size) -> int:
    """Events of a segment before those of transactions, behind `segment`."""
    return QUEUES + 3 if segment == 0 else 3 if segment == size.segments // 2 else 0


def _records(k: int, size: Size) -> Iterator[Row]:
    """The fields of each of `STEPS`."""
    at, prepare, commit, tx = base(k, size), prepare_of(k, size), commit_of(k, size), tx_of(k, size)
    yield from _applied(k, size)
    yield {"offset": at, "tx": tx}
    for place in range(MESSAGES):
        queue = _queue(queue_of(k, place // HALF))
        comes = {"id": 0, "place": place % HALF, "size": 256, "persistent": True, "routing_key": queue["queue"]}
        yield {"offset": at + place, "tx": tx, **queue, **comes}
    for place in range(MESSAGES):
        taken = {**_queue(queue_of(k - 1, place // HALF)), "id": first_id(k - 1, size) + place % HALF, "count": 1}
        yield {"offset": at + MESSAGES + place, "tx": tx, **taken}
    effects = {"events": 2 * MESSAGES, "durable_events": 2 * MESSAGES, "durable_digest": str(DIGESTS + k)}
    yield {"offset": prepare, "tx": tx, **effects}
    decided = {"csn": k + 1, "primary_ms": AT_MS + k}
    yield {"offset": prepare, "tx": tx, **decided, "owner": "local", "name": f"c-{k + 1}", "queues": 2}
    for second in range(2):
        given = {**_queue(queue_of(k, second)), "id": first_id(k, size), "count": HALF}
        yield {"offset": prepare, "tx": tx, "csn": k + 1, **given}
    yield _batch(at, prepare, at - 1, 2 * k + 1)
    yield {"offset": prepare - 1, "tx": "", "csn": 0, "stable": prepare}
    yield {"offset": commit, "tx": tx, **decided}
    yield _batch(commit, commit, prepare, 2 * k + 2)


def _applied(k: int, size: Size) -> Iterator[Row]:
    """Rows that say that the transaction before is applied."""
    if not k:
        yield from ({"event": "hole", "offset": 0, "count": 1} for _ in range(2))
        return
    at, before = base(k, size), k - 1
    decided_at = commit_of(before, size)
    yield {
        "offset": prepare_of(before, size),
        "tx": tx_of(before, size),
        "csn": k,
        "stable": at - 1,
        "decided_at": decided_at,
    }
    yield {"offset": decided_at, "tx": "", "csn": 0, "stable": at - 1}


def _queue(number: int) -> Row:
    return {"queue_id": number, "queue": f"q{number}", "vhost": "/"}


def _batch(first: int, last: int, stable: int, sync: int) -> Row:
    place = {"offset": last, "first_offset": first, "count": last - first + 1}
    return {**place, "stable": stable, "sync": sync, "content_crc": last}


def facts(k: int, size: Size) -> Iterator[Row]:
    """Rows of the primary about a transaction's answer and deliveries."""
    broker, place = ("b2", k - size.half) if k >= size.half else ("b1", k)
    head = {**_head(broker, k, size), "incarnation": process_of(broker), "offset": commit_of(k, size), "k": k}
    first = 1 + HEAD_FACTS + place * (MESSAGES + 1)
    decided = {"csn": k + 1, "prepare_offset": prepare_of(k, size), "decided_at": commit_of(k, size)}
    answer = {"answer": "tx.commit-ok", "outcome": "committed", "client": "c", "channel": 1}
    named = {"tx": tx_of(k, size), "name": f"c-{k + 1}"}
    stable = prepare_of(k, size)
    yield {**head, "step": "told", "event": "told", "seq": first, **named, **answer, **decided, "stable": stable}
    for each in range(MESSAGES):
        message = {**_queue(queue_of(k, each // HALF)), "id": first_id(k, size) + each % HALF, "redelivered": False}
        message["logged"] = True
        yield {**head, "step": "deliver", "event": "deliver", "seq": first + 1 + each, **message}


def rare(size: Size) -> Rows:
    """Rows that belong to no transaction."""
    heads = (_journal_heads, _head_facts, _ends)
    return [row for broker in BROKERS for of in heads for row in of(broker, size)]


def _ends(broker: str, size: Size) -> Rows:
    """Rows that say where the journal ends, and the facts."""
    last, led = size.segments - 1, {"b1": size.half, "b2": size.transactions - size.half}.get(broker, 0)
    row = {"broker": broker, "event": "end", "seq": 0, "epoch": 2, "offset": base(size.transactions, size) - 1}
    row["at_ms"] = AT_MS + size.transactions
    events = {
        journal_of(broker, last): 1 + size.segment * len(STEPS) + _extra(last, size),
        process_of(broker): HEAD_FACTS + led * (MESSAGES + 1),
    }
    return added({**row, "incarnation": name, "events": many} for name, many in events.items())


def added(rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Rows of no transaction. Heads that they leave out are those of the feed."""
    head = {"schema": SCHEMA_VERSION, "group": "made", "founding": FOUNDING, "k": -1}
    return [{**head, "step": row["event"], **row} for row in rows]


def _journal_heads(broker: str, size: Size) -> Rows:
    return added(row for segment in range(size.segments) for row in _segment(broker, segment, size))


def _segment(broker: str, segment: int, size: Size) -> Iterator[Row]:
    k, extra = segment * size.segment, _extra(segment, size)
    row = {"broker": broker, "incarnation": journal_of(broker, segment), "at_ms": AT_MS + k}
    events = 1 + size.segment * len(STEPS) + _extra(segment - 1, size)
    previous = {"previous": journal_of(broker, segment - 1), "previous_events": events} if segment else {}
    epoch, end = 1 + (extra == 0 and k >= size.half), base(k, size) - 1
    yield {**row, "event": "segment", "seq": 1, "epoch": epoch, "offset": end, "segment": segment + 1, **previous}
    if segment == 0:
        yield {**row, "event": "epoch_seen", "seq": 2, "epoch": 1, "offset": 0}
        yield {**row, "event": "epoch", "seq": 3, "epoch": 1, "offset": 1, "primary": "b1", "primary_ms": AT_MS}
        for queue in range(1, QUEUES + 1):
            made_queue = {"what": "queue", **_queue(queue), "durable": True}
            yield {**row, "event": "declare", "seq": 3 + queue, "epoch": 1, "offset": 1 + queue, **made_queue}
        yield {**row, "event": "append", "seq": 4 + QUEUES, "epoch": 1, **_batch(1, QUEUES + 1, 0, 0)}
    elif extra:
        at = epoch_two_at(size)
        yield {**row, "event": "epoch_seen", "seq": 2, "epoch": 2, "offset": at - 1}
        yield {**row, "event": "epoch", "seq": 3, "epoch": 2, "offset": at, "primary": "b2", "primary_ms": AT_MS + k}
        yield {**row, "event": "append", "seq": 4, "epoch": 2, **_batch(at, at, at - 1, 0)}


def _head_facts(broker: str, size: Size) -> Rows:
    leads = {"b1": 1, "b2": 2}.get(broker)
    row = {"broker": broker, "incarnation": process_of(broker), "epoch": leads or 1, "at_ms": AT_MS}
    row["offset"] = 1 if leads != 2 else epoch_two_at(size)
    told: Rows = [{"event": "role", "role": "primary" if leads else "backup", "primary": "b1"}]
    told.append({"event": "in_sync", "members": ",".join(BROKERS), "min_insync": 2})
    ready = {"event": "readiness", "ready": True, "listed": True, "linked": True, "blockers": 0}
    told += [{**ready, "backup": backup} for backup in BROKERS]
    status = {"status": "active" if leads else "ready", "primary": "b1", "listed": True, "stable": row["offset"]}
    told.append({"event": "status", **status})
    assert len(told) == HEAD_FACTS
    return added({**row, "seq": seq, **each} for seq, each in enumerate(told, 1))
