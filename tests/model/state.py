"""Parts of a state of the model.

A state is one :class:`World` and a bag of :class:`Broker`. Brokers have no names: everything that concerns one broker stands in
its own part, also what the store says of it (``listed``, ``named``, ``flight``) and what each living primary knows of it
(``views``). So two states that differ only by who is who are the same state, and a step concerns one or two parts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import attrs

from tests.model.records import EPOCH, FIRST, ROLLED_BACK, Log, record, transaction

COMMIT_TOLD: Final = 1
ROLLBACK_TOLD: Final = 2
OPENED: Final = 4
ENQUEUED: Final = 8
DEQUEUED: Final = 16
ASKED: Final = 32
PREPARED_TOLD: Final = 64
SAYS_COMMIT: Final = 128
SAYS_ROLLBACK: Final = 256
MOVED: Final = 512
"""Facts of the world: what clients have done, and what they may have been told or have seen of the transaction.

Three are of a branch's manager: it may have been told prepare-ok; it has decided, and says so until it is answered.
"""

IDLE: Final = 0
WAITING: Final = 1
FORGOTTEN: Final = 2
WON: Final = 3
"""A campaign's request: none; on its way, and its broker waits; on its way, unknown to its broker; done, not answered yet."""

MUST_LEAVE: Final = 1
LOST_DATA: Final = 2

LACKS_OUTCOME: Final = 1
LACKS_PREPARED: Final = 8
"""Bits of ``Broker.lacks`` besides those of the transaction's events (B, C): its outcome is not known here; nor is the DTX_PREPARE
that stands at or before the base of its catch-up."""


class View(NamedTuple):
    """The knowledge that one living primary has of one other broker (ha.remote_backup.RemoteBackup).

    Attributes:
        epoch: the primary's.
        listed: it waits for this broker as a member.
        acked: as far as this broker has acknowledged on its link.
        guard: a joiner's: completions beyond it wait for it; 0 if it has none.
        leaving: MUST_LEAVE or LOST_DATA: it is to be removed from the set, in the latter case even at the minimum.
        change: a change of the set that concerns this broker has been asked for and is not settled.
    """

    epoch: int
    listed: int
    acked: int = 0
    guard: int = 0
    leaving: int = 0
    change: int = 0


class Role(NamedTuple):
    """A primary (ha.primary.Primary).

    Attributes:
        active: 0 while it is recovering.
        stable: the highest stable position it has had in this epoch.
        open: its last record, a COMMIT, is in the open batch: neither journaled nor sent yet.
        busy: a change of the set is not settled.
        over: the write that settles it by changing the version alone is on its way (decision 0003).
        behind: the store has been changed by this primary, which does not know it.
    """

    epoch: int
    active: int
    stable: int
    open: int = 0
    busy: int = 0
    over: int = 0
    behind: int = 0


class Filling(NamedTuple):
    """The content that a catch-up has brought so far, while it differs from what the log says.

    Attributes:
        told: as far as this broker has been told that its log is stable.
        content: the messages in its queues.
        todo: ids (bits) that the primary still has to send.
        owed: a TRANSACTION piece is to come before the log flows.
    """

    told: int
    content: int
    todo: int = 0
    owed: int = 0


class Broker(NamedTuple):
    """One broker.

    Attributes:
        seen: the highest epoch it has seen, durably.
        knows: the store's epoch when this process first read it; it follows no older primary.
        synced: how much of the log is fsynced.
        start: the log holds everything after this offset (0, or the base of a catch-up).
        no: the offset of the PREPARE, or DTX_PREPARE, it refuses, 0 if none; durable.
        lacks: the transaction's events that its TxBuffer should hold and does not.
        sure: it was told that PREPARE (of a branch: DTX_PREPARE) is stable, and does not know the decision for good
            (rules.KEEPS_SURE). 2: see mutation commit-when-received.
        part: a catch-up is unfinished.
        link: the epoch of the primary that it follows, 0 if none.
        listed, named: the store has it in the in-sync set, as the primary.
        flight: a request that would put it into the set, or take it out, is on its way to the store.
        campaign: IDLE, WAITING, FORGOTTEN or WON.
    """

    up: int
    seen: int
    knows: int
    log: Log
    synced: int
    start: int
    no: int
    lacks: int
    sure: int
    part: int
    filling: Filling | None
    link: int
    listed: int
    named: int
    flight: int
    campaign: int
    views: tuple[View, ...]
    role: Role | None


class World(NamedTuple):
    """The part of a state that belongs to no broker: the store's epoch, what is settled for good, faults that may still happen.

    Attributes:
        chosen: the longest prefix of a log that any primary has taken for stable. Whatever is in it may have been applied,
            delivered or confirmed, on any broker.
    """

    epoch: int
    chosen: Log
    facts: int
    crashes: int
    powers: int
    takeovers: int
    noes: int
    lost: int
    wipes: int


@attrs.frozen(kw_only=True)
class Bounds:
    """How large a world is explored.

    Attributes:
        events: of the transaction: 0 (there is none), 1 (TX_ENQUEUE), 2 (and TX_DEQUEUE).
        messages: A and B stand in their queues from the beginning.
        enqueue, dequeue, move: the plain ENQUEUE of D, the plain DEQUEUE of A, the MOVE of A happen.
        branch: the transaction is one that a manager decides. Not together with ``ask``.
        rollback: the client, or the manager, may roll the open transaction back.
        ask: a client may ask what became of the transaction, by its name.
        crashes, powers: of one broker, of all at once.
        takeovers: campaigns while the primary lives (it is cut off, or paused; it may go on for ever).
        noes: how often a backup finds its TxBuffer incomplete at PREPARE.
        lost: answers of the store that are lost, or requests that are late.
        wipes: crashes that lose the data directory.
        trim: a kept log may have been trimmed as far as the code allows, so a catch-up is needed.
        split: a backup's append and its fsync are two steps.
    """

    brokers: int = 3
    min_insync: int = 2
    events: int = 1
    messages: bool = False
    enqueue: bool = False
    dequeue: bool = False
    move: bool = False
    branch: bool = False
    rollback: bool = False
    ask: bool = False
    crashes: int = 0
    powers: int = 0
    takeovers: int = 0
    noes: int = 0
    lost: int = 0
    wipes: int = 0
    trim: bool = False
    split: bool = False


def first_log(bounds: Bounds) -> Log:
    """The log that every broker has, known to be stable, when the story begins."""
    log = (record(1, EPOCH),)
    return (*log, record(1, FIRST)) if bounds.messages else log


def first_state(bounds: Bounds) -> tuple[World, list[Broker]]:
    """One active primary, all brokers listed, linked and equal."""
    log = first_log(bounds)
    end = len(log)
    primary = Broker(1, 1, 1, log, end, 0, 0, 0, 0, 0, None, 0, 1, 1, 0, IDLE, (), Role(1, 1, end))
    backup = primary._replace(named=0, link=1, views=(View(1, 1, end),), role=None)
    world = World(
        1,
        log,
        0,
        bounds.crashes,
        bounds.powers,
        bounds.takeovers,
        bounds.noes,
        bounds.lost,
        bounds.wipes,
    )
    return world, [primary] + [backup] * (bounds.brokers - 1)


def view_of(broker: Broker, epoch: int) -> View | None:
    """The view that the primary of ``epoch`` has of ``broker``; None if it neither waits for it nor guards it."""
    for view in broker.views:
        if view.epoch == epoch:
            return view
    return None


def with_view(broker: Broker, view: View) -> Broker:
    """``broker`` as the primary of ``view.epoch`` sees it from now on."""
    others = [other for other in broker.views if other.epoch != view.epoch]
    return broker._replace(views=tuple(sorted([*others, view])))


def without_view(broker: Broker, epoch: int) -> Broker:
    """The primary of ``epoch`` forgets ``broker``, or is gone; a link between them has ended."""
    return broker._replace(
        views=tuple(view for view in broker.views if view.epoch != epoch),
        link=0 if broker.link == epoch else broker.link,
    )


def purged(broker: Broker) -> Broker:
    """``broker`` when the store has changed: whatever it had on its way there fails, for the version is another."""
    campaign = IDLE if broker.campaign in (WAITING, FORGOTTEN) else broker.campaign
    return broker._replace(flight=0, campaign=campaign)


def wiped(broker: Broker) -> bool:
    """Its data directory is empty (ha.backup.Backup.wiped, less what the store says)."""
    return not broker.log and not broker.seen


def closed_end(broker: Broker) -> int:
    """Where the last closed batch of a primary ends."""
    assert broker.role is not None
    return len(broker.log) - broker.role.open


def no_stands(broker: Broker) -> bool:
    """A no stands while its PREPARE, or DTX_PREPARE, is in this log and no ROLLBACK follows it there (DESIGN 5, step 3)."""
    if not broker.no:
        return False
    tx = transaction(broker.log)
    return broker.no in (tx.prepare, tx.prepared) and tx.state != ROLLED_BACK
