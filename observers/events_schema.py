"""The event schema: what the feed says, one flat struct an event. `docs/feed.md` is made from this file.

**Flat.** Each event is one row of one table: all fields are numbers, texts or truth values, and a field has the same type
in every event that has it. A record that concerns several queues becomes several events. JSON leaves out fields that have
their default.

**Numbered streams.** ``seq`` counts the events of one *incarnation* of a broker's feed from 1, without holes, so a reader
sees what is missing. Events of the journal have one incarnation a segment file, ``j<number>-<salt>``: number and salt
stand in the file's header, so whoever reads the file, and however often it is interrupted, counts the same. A reader that
began behind the beginning of the journal adds ``@<number>`` of the segment with which it began: without what it has not
read it may count otherwise. The first event of a segment is `Segment`, which states how many events the segment before it
has. A `Gap` has no number: it is a fact of the reader. Facts that are in no journal have one incarnation a process of the
broker, ``p<start>-<pid>``.

**Times.** ``at_ms`` is the wall clock of this broker when it wrote the group of frames that holds the record; 0 if that
segment is of a format without times. ``primary_ms`` is the wall clock of the primary that decided, out of the record; it
is the same on every broker.

**Transactions.** ``tx`` is ``<founding>/<epoch>.<number>``, unique over foundings of a group of this name;
``<epoch>.<number>`` of a broker without a group. ``name`` is the client's own name of the transaction.

This module imports nothing of ours: the pipeline imports it, and nothing else.
"""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

import msgspec

SCHEMA_VERSION: Final = 1
"""Raised when a field changes its meaning or goes; a new event or a new field with a default leaves it as it is."""

_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")


def event_name(class_name: str) -> str:
    """``DtxPrepare`` -> ``dtx_prepare``."""
    return _CAPITAL.sub("_", class_name).lower()


class Event(msgspec.Struct, gc=False, omit_defaults=True, tag_field="event", tag=event_name):
    """What every event has. An event is never changed.

    Attributes:
        schema: version of this schema.
        group: id of the HA group.
        founding: of the group, in hexadecimal; "" before the broker has met one, or without HA.
        broker: whose feed this is.
        incarnation: names the numbered stream; see the head of this file.
        seq: 1, 2, 3, ... within the incarnation.
        epoch: of the record; of a fact that is no record, the newest epoch in this broker's log.
        offset: of the record in the log; of another fact, the end of this broker's log.
        at_ms: wall clock of this broker; 0 if it is not known.
    """

    schema: int
    group: str
    founding: str
    broker: str
    incarnation: str
    seq: int
    epoch: int
    offset: int
    at_ms: int


# -- the journal itself -----------------------------------------------------------------------------------------------


class Segment(Event):
    """A segment of the journal begins. First event of its incarnation.

    Attributes:
        segment: its number.
        previous: incarnation of the segment before it; "" if the reader has not read that.
        previous_events: how many events that one has.
        previous_event_digest: digest of these (`event_digest` of `End`); -1: not known.
    """

    segment: int
    previous: str = ""
    previous_events: int = 0
    previous_event_digest: int = -1


class Append(Event):
    """A batch is in this broker's journal, fsynced with its group. ``offset`` is the last of its records.

    Attributes:
        first_offset: of the batch.
        count: how many places of the log it takes.
        stable: how far the primary knew the log to be stable when it closed the batch.
        sync: number of the group that was fsynced as one.
        content_crc: CRC-32 of the batch's records, as the journal holds them: the same on all brokers; -1: not known.
        event_digest: digest of the events of this incarnation up to here, without this one (as of `End`); -1: not known.
    """

    first_offset: int
    count: int
    stable: int
    sync: int
    content_crc: int = -1
    event_digest: int = -1


class Hole(Event):
    """Records of which no event tells more: transient ones, which no journal keeps, or one that changes nothing.

    That one is a barrier, or the mark that an auto-delete queue or exchange was used. ``offset`` is that of the last.

    Attributes:
        count: how many.
    """

    count: int


class Apply(Event):
    """This broker knows the log to be stable so far, and has applied it.

    There is one event for the position, and before it one for each transaction that was applied on the way; the ``offset`` of
    that is its PREPARE's. The journal states the stable position with the next batch, so the event may come later than the fact.

    Attributes:
        stable: the stable position that made it possible.
        applied_before: of the event for the position.
        tx: the transaction that was applied, in one step with all its queues; "" of the event for the position.
        csn: of the transaction.
        decided_at: offset of the COMMIT by which this broker knew the decision.
    """

    stable: int
    applied_before: int = 0
    tx: str = ""
    csn: int = 0
    decided_at: int = 0


class Cut(Event):
    """This broker's log lost its tail: what was appended after ``offset`` is no part of the group's log.

    Attributes:
        end_before: the end of the log before.
        reason: ``rejoin`` (the primary's log goes on after ``offset``), ``catch_up`` (the log begins anew, a base follows; queues
            keep what they hold), ``let_go`` (log and messages are gone: they filled the disk of a broker that is not listed) or
            ``repair`` (``understudy journal check --repair`` has cut a damaged journal; ``end_before`` as far as it was read).
    """

    end_before: int
    reason: str


class Piece(Event):
    """Something that a catch-up brought. A transaction's piece is followed by its records, as events with their own offsets.

    Attributes:
        what: ``base`` (the log goes on after ``offset``), ``drop`` (ids that the queue does not hold any more), ``transaction``,
            ``queue`` (messages of a queue) or ``caught_up``.
        vhost, queue, queue_id: of a drop or of messages.
        id: the first of consecutive replication ids.
        count: so many ids; of a transaction, records; of a base, queues.
        tx: of a transaction.
        csn: of a base: the last commit that it contains.
    """

    what: str
    vhost: str = ""
    queue: str = ""
    queue_id: int = 0
    id: int = 0
    count: int = 0
    tx: str = ""
    csn: int = 0


class Checkpoint(Event):
    """The broker noted everything that is no message, so older segments may go. ``offset`` is what it had applied.

    Attributes:
        queues: how many there are.
        csn: of the last commit that was applied.
    """

    queues: int
    csn: int


class EpochSeen(Event):
    """This broker has durably noted an epoch: it takes nothing of a lower one any more. ``epoch`` is that."""


class Founding(Event):
    """This broker was about to found its group."""


class Gap(Event):
    """The feed could not read a part: what stood between two positions is missing in it. Its ``seq`` is 0.

    Attributes:
        reason: ``dropped`` (the journal has let go of segments that were not read yet), ``rewritten`` (the journal is not what it
            was where the feed stopped: it lost its tail with a power failure or a repair, or the directory was replaced) or
            ``started`` (the feed began behind the beginning of the log). Of facts that are no record: ``facts_dropped`` (their
            broker keeps the last files only) or ``facts_rewritten``.
        from_epoch, from_offset: the last record that was read; 0 if none was.
        from_segment: where it stood; of facts, the number of their file.
        to_segment: where the feed goes on. The position is that of the next event that has one.
    """

    reason: str
    from_epoch: int
    from_offset: int
    from_segment: int
    to_segment: int


class End(Event):
    """So far the feed has an incarnation: it was stopped here, or a file or a transaction of Kafka ends. Its ``seq`` is 0.

    More may follow: of several events `End` of an incarnation the one with most events counts.

    Attributes:
        events: how many events the incarnation has.
        event_digest: over all fields of these events (docs/feed.md, Summed); -1: not known.
    """

    events: int
    event_digest: int = -1


# -- messages and transactions ----------------------------------------------------------------------------------------


class Open(Event):
    """The first record of a transaction."""

    tx: str


class Enqueue(Event):
    """A message comes to a queue: at once if ``tx`` is "", else if that transaction commits.

    Attributes:
        tx: the transaction; "" for none.
        vhost, queue: names; "" if the journal does not hold the declaration any more.
        queue_id: of the queue.
        id: replication id; 0 in a transaction, whose ids are given by `Assign`.
        place: within the transaction and queue: the id will be that of `Assign` plus this.
        size: of the body in bytes.
        persistent: whether it survives a restart of the whole group.
        exchange, routing_key: as it was published.
        deadline_ms: wall clock at which it expires; 0: never, or see ``ttl_ms``.
        ttl_ms: in a transaction, how long it lives from the commit on: beyond ``primary_ms`` of `Prepare`; -1: not said so.
        parted: the body stands in the log in parts, before this record. Parts have no events.
    """

    tx: str
    vhost: str
    queue: str
    queue_id: int
    id: int
    place: int
    size: int
    persistent: bool
    exchange: str
    routing_key: str
    deadline_ms: int = 0
    ttl_ms: int = -1
    parted: bool = False


class Dequeue(Event):
    """Messages leave a queue: at once if ``tx`` is "", else if that transaction commits.

    Attributes:
        id: the first of consecutive replication ids.
        count: how many.
        reason: acknowledged, expired, purged, rejected, maxlen or delivery_limit; "" in a transaction.
    """

    tx: str
    vhost: str
    queue: str
    queue_id: int
    id: int
    count: int
    reason: str = ""


class Move(Event):
    """A message leaves a queue and enters others, in one step. `dequeue`, and `enqueue` for each of them, stand at the same place.

    Attributes:
        queue_id: 0 if the queue is not in the log; then there is no `dequeue`.
        id: replication id of the message that leaves.
        reason: expired, rejected, maxlen or delivery_limit.
        targets: how many queues it enters.
    """

    vhost: str
    queue: str
    queue_id: int
    id: int
    reason: str
    targets: int


class Return(Event):
    """A message comes back to a queue that counts.

    Attributes:
        id: replication id of the message, which stays the same.
        failures: how often its processing has failed in this queue, this time included.
        hand_outs: how often it was handed out and came back.
        due_ms: nobody gets it before, in ms since 1970; 0 if it is not withheld.
    """

    vhost: str
    queue: str
    queue_id: int
    id: int
    failures: int
    hand_outs: int
    due_ms: int


class Close(Event):
    """A transaction is complete: nothing is added to it any more. At the place of its PREPARE or DTX_PREPARE.

    Attributes:
        events: how many operations it has; a large body counts its parts, too, which have no events here.
        digest: over their heads, in hexadecimal; a broker that holds the same has the same digest.
        durable_events, durable_digest: the same of what a journal keeps.
    """

    tx: str
    events: int
    digest: str
    durable_events: int
    durable_digest: str


class Prepare(Event):
    """PREPARE: the transaction commits when this is stable, unless a rollback follows.

    Attributes:
        csn: commit sequence number.
        name: the client's.
        owner: who decided: ``local`` (the broker), ``manager`` (a transaction manager) or ``operator``.
        queues: to how many it brings messages; so many `Assign` follow.
        primary_ms: wall clock of the primary.
    """

    tx: str
    csn: int
    name: str
    owner: str
    queues: int
    primary_ms: int


class Assign(Event):
    """The replication ids that a transaction's messages get in one queue.

    Attributes:
        id: the first.
        count: how many, consecutive, in the client's order.
    """

    tx: str
    csn: int
    vhost: str
    queue: str
    queue_id: int
    id: int
    count: int


class Commit(Event):
    """COMMIT: the primary had found PREPARE stable, and had applied the transaction."""

    tx: str
    csn: int
    primary_ms: int


class Rollback(Event):
    """A transaction ends without effect.

    Attributes:
        name: the client's.
        reason: why; of one that was open when its primary was replaced, this stands at the EPOCH record.
        primary_ms: wall clock of the primary; 0 if an EPOCH ended it.
    """

    tx: str
    name: str = ""
    reason: str = ""
    primary_ms: int = 0


class DtxPrepare(Event):
    """A branch of a distributed transaction is prepared: only its transaction manager, or an operator, ends it.

    Attributes:
        xid: format:global:branch.
    """

    tx: str
    vhost: str
    xid: str
    primary_ms: int


class DtxRollback(Event):
    """An operator has rolled a prepared branch back, which is remembered."""

    tx: str
    vhost: str
    xid: str
    primary_ms: int


class DtxForget(Event):
    """What an operator did with a branch need not be remembered any more."""

    vhost: str
    xid: str


class Outcome(Event):
    """A client asked for a name of which no transaction is known: it is barred, a late commit under it is refused."""

    name: str
    primary_ms: int


class OutcomesTrimmed(Event):
    """Outcomes that were decided at or before an offset are forgotten.

    Attributes:
        upto: that offset.
    """

    upto: int


# -- topology and epochs ----------------------------------------------------------------------------------------------


class Declare(Event):
    """A queue or an exchange.

    Attributes:
        what: ``queue`` or ``exchange``.
        queue, queue_id: of a queue.
        exchange, type: of an exchange.
        durable, auto_delete: as declared.
        messages_logged: False for a queue whose messages are in no log.
    """

    what: str
    vhost: str
    queue: str = ""
    queue_id: int = 0
    exchange: str = ""
    type: str = ""
    durable: bool = False
    auto_delete: bool = False
    messages_logged: bool = True


class Delete(Event):
    """A queue, with all that it holds, or an exchange."""

    what: str
    vhost: str
    queue: str = ""
    queue_id: int = 0
    exchange: str = ""


class Bind(Event):
    """A queue is bound to an exchange."""

    vhost: str
    exchange: str
    queue: str
    queue_id: int
    routing_key: str


class Unbind(Event):
    """A queue is not bound to an exchange any more."""

    vhost: str
    exchange: str
    queue: str
    queue_id: int
    routing_key: str


class ExchangeBind(Event):
    """An exchange passes messages on to another one.

    Attributes:
        exchange: that passes them on.
        destination: the exchange that takes them.
    """

    vhost: str
    exchange: str
    destination: str
    routing_key: str


class ExchangeUnbind(Event):
    """An exchange passes messages on to another one no more.

    Attributes:
        exchange: that passed them on.
        destination: the exchange that took them.
    """

    vhost: str
    exchange: str
    destination: str
    routing_key: str


class Epoch(Event):
    """The reign of a primary begins. What was open is rolled back.

    Attributes:
        primary: broker id.
        transients_lost: whether transient messages ended here.
        primary_ms: wall clock of that primary.
    """

    primary: str
    transients_lost: bool
    primary_ms: int


# -- votes, as far as they are durable notes -----------------------------------------------------------------------------


class Vote(Event):
    """This broker's vote on a closed transaction. A refusal is a note of its journal; consent is an acknowledgement past PREPARE.

    Attributes:
        vote: ``failed`` (refused), ``ended`` (the refusal does not stand any more), ``prepared`` or ``left``.
        prepare_offset: of the PREPARE or DTX_PREPARE.
        reason: what this broker lacks.
        backup: whose vote, if the primary tells it (a fact that is no record); else this broker's.
    """

    tx: str
    vote: str
    prepare_offset: int
    reason: str = ""
    backup: str = ""


# -- facts that are no record ----------------------------------------------------------------------------------------


class Role(Event):
    """This broker has another role: ``primary``, ``backup`` or ``standalone``."""

    role: str
    was: str = ""
    primary: str = ""


class Status(Event):
    """This broker has another status.

    Attributes:
        status, was: joining, catchup, ready, recovering, active or standalone.
        primary: whom it follows, or itself.
        listed: whether it is in the in-sync set, as it has seen that last.
        stable: how far it knows its log to be stable; -1: that is not said.
    """

    status: str
    was: str = ""
    primary: str = ""
    listed: bool = True
    stable: int = -1


class InSync(Event):
    """The primary begins to lead with this in-sync set, or has learnt that the stored one is another.

    Attributes:
        members: broker ids, sorted, with commas.
        min_insync: how many there must be.
    """

    members: str
    min_insync: int = 0


class Readiness(Event):
    """A backup is ready, or what keeps it from being ready has changed.

    Attributes:
        backup: which.
        ready: whether it may be promoted.
        listed, linked: whether it is in the in-sync set, and whether it has a link.
        blockers: how many `Blocker` follow.
    """

    backup: str
    ready: bool
    listed: bool
    linked: bool
    blockers: int = 0


class Blocker(Event):
    """One thing that keeps a backup from being ready.

    Attributes:
        what: ``queue`` (its messages), ``transaction`` (a tracker), ``tx_queue`` (operations), ``lag`` (of log records),
            ``unlinked``, ``leaving`` or ``set`` (it waits to be added).
        queue, tx: of what.
        left: how many the backup lacks.
    """

    backup: str
    what: str
    queue: str = ""
    tx: str = ""
    left: int = 0


class TrackerAdd(Event):
    """A transaction closed of which a backup lacks a part.

    Attributes:
        left: how many ids.
    """

    tx: str
    backup: str
    queue: str = ""
    left: int = 0


class TrackerClear(Event):
    """The backup holds that transaction now."""

    tx: str
    backup: str


class Expel(Event):
    """A broker is taken out of the in-sync set.

    Attributes:
        data: ``lost`` if its disk was lost or replaced: such a broker leaves even if the set is below its minimum then. Else
            ``whole``; "" if that is not said.
    """

    backup: str
    reason: str
    data: str = ""


class Admit(Event):
    """A broker is put into the in-sync set.

    Attributes:
        acked: the furthest offset that it has acknowledged; -1 if that is not known.
        catches_up: whether pieces of a catch-up are still to come to it.
        stable: how far this primary knew its log to be stable then; -1: that is not said.
    """

    backup: str
    acked: int = -1
    catches_up: bool = False
    stable: int = -1


class Bar(Event):
    """An operator keeps a broker out of the in-sync set from now on, or does so no more.

    No broker tells what an operator changes in the coordination store while no primary runs.

    Attributes:
        backup: which.
        by: the user who gave the command.
        lifted: the broker may join again.
    """

    backup: str
    by: str
    lifted: bool = False


class Promote(Event):
    """This broker has won an epoch."""

    was: str = ""
    reason: str = ""


class StepDown(Event):
    """This broker leads no more.

    Attributes:
        reason: why.
        successor: the broker to which it has handed over, as an operator wanted; "" if it has not.
    """

    reason: str
    successor: str = ""


class LinkUp(Event):
    """A link to another broker is up."""

    peer: str


class LinkDown(Event):
    """A link is gone."""

    peer: str
    reason: str = ""


class WorkRefused(Event):
    """The primary takes no new work.

    Attributes:
        cause: ``disk``, ``disk of a backup``, ``memory``, ``in-sync set`` or ``step-down``.
    """

    cause: str
    reason: str = ""


class WorkTaken(Event):
    """The primary takes work again."""

    cause: str


class Dropped(Event):
    """The buffer of facts was full.

    Attributes:
        count: how many facts are missing here; ``seq`` goes on as if they had been told.
    """

    count: int


class Applied(Event):
    """This broker has applied its log so far, and the journal does not say so yet: the log rests.

    The same as `Apply`, which the next batch of the journal brings. There is one event for the position, and before it one for each
    transaction (of the last 1,000) whose `Apply` is not in the journal.

    Attributes:
        upto: the offset that is applied; of a transaction, its PREPARE's.
        stable: the stable position that made it possible.
        tx: the transaction; "" of the event for the position.
        csn: of the transaction.
        decided_at: offset of the COMMIT by which this broker knew the decision.
    """

    upto: int
    stable: int
    tx: str = ""
    csn: int = 0
    decided_at: int = 0


class Confirm(Event):
    """A publisher was told (basic.ack) that messages are safe. Only at detail "messages".

    The messages are those of the `Enqueue` events at ``first_offset`` to ``last_offset``: each record there is of this channel.
    Publishes of a channel that do not follow one another in the log make several events.

    A body that stands in the log in parts is a transaction of its own: its `Enqueue` has ``tx``, and ``id`` 0. The replication
    id is ``id`` of the `Assign` of that transaction and queue, plus ``place``. The message is safe when each member of the
    in-sync set has the `Prepare` of that transaction, which stands behind ``last_offset``.

    Attributes:
        client: name of the connection, as ``/connections`` shows it.
        channel: number of the channel.
        tag: the highest delivery tag of these.
        first_offset, last_offset: of the ENQUEUE records; 0 if the messages came to no queue whose messages are in the log.
        count: how many messages.
        stable: how far this broker knew its log to be stable then; -1: that is not said.
    """

    client: str
    channel: int
    tag: int
    first_offset: int
    last_offset: int
    count: int
    stable: int = -1


class Told(Event):
    """A client was told what became of a transaction. Only at detail "messages".

    Attributes:
        answer: ``tx.commit-ok``, ``tx.rollback-ok``, ``dtx.prepare-ok``, ``dtx.commit-ok``, ``dtx.rollback-ok``, ``channel.close``
            (the commit was refused, or there is no such branch), ``outcome`` (the answer to an outcome query: a message) or
            ``dtx.recover-ok`` (which branches are in doubt, if the answer lists all of them).
        outcome: ``committed``, ``rolled back`` or ``prepared``; ``expired`` if the outcome is not kept any more; ``unknown`` if
            there is no such branch; ``listed`` of ``dtx.recover-ok``; of another answer to a transaction manager, its status.
        tx: the transaction; "" of an outcome query, and of a branch that is not there any more.
        name: the client's; of an outcome query its subject, of a branch its xid.
        csn: of the transaction; 0 if it has none.
        prepare_offset: of its PREPARE, else of its DTX_PREPARE; 0 if it has neither.
        decided_at: offset of its COMMIT or ROLLBACK; 0 if it has none.
        client, channel: name of the connection, and number of the channel; "" and 0 of an outcome query.
        stable: how far this broker knew its log to be stable then; -1: that is not said.
        vhost: of a branch that is unknown, and of branches that are listed.
        known_at: of these: the end of this broker's log when it looked for them; 0 of another answer.
        branches: of ``dtx.recover-ok``: how many branches it lists as prepared; -1 of another answer.
    """

    answer: str
    outcome: str
    tx: str = ""
    name: str = ""
    csn: int = 0
    prepare_offset: int = 0
    decided_at: int = 0
    client: str = ""
    channel: int = 0
    stable: int = -1
    vhost: str = ""
    known_at: int = 0
    branches: int = -1


class Deliver(Event):
    """A message was handed to a consumer. Only at detail "messages".

    Attributes:
        logged: journals have the record that brings it: the message is persistent, and its queue durable and replicated.
    """

    queue: str
    id: int
    redelivered: bool = False
    vhost: str = ""
    queue_id: int = 0
    logged: bool = False
    priority: int = 0


class Requeue(Event):
    """A message returned to its place in the queue. Only at detail "messages"."""

    queue: str
    id: int
    vhost: str = ""
    queue_id: int = 0
    priority: int = 0


EVENT_TYPES: Final[tuple[type[Event], ...]] = tuple(Event.__subclasses__())
"""All of them, in the order of this file."""
BY_NAME: Final[dict[str, type[Event]]] = {event_name(each.__name__): each for each in EVENT_TYPES}
FIELDS: Final = {
    "tx": "the transaction",
    "csn": "commit sequence number: the place in the order of commits",
    "name": "the client's own name of the transaction",
    "vhost": "virtual host",
    "queue": "the queue's name",
    "queue_id": "the queue's id, which a queue that is declared anew does not share",
    "exchange": "the exchange's name",
    "routing_key": "of the binding",
    "id": "replication id",
    "count": "how many",
    "what": "queue or exchange",
    "xid": "of the branch, as format:global:branch",
    "reason": "why",
    "backup": "broker id of the backup",
    "peer": "broker id of the other end",
    "primary": "broker id of the primary",
    "primary_ms": "wall clock of the primary that decided",
    "was": "what it was before",
    "left": "how many ids the backup lacks",
    "role": "the new one",
    "cause": "as in `work_refused`",
    "redelivered": "whether it may have been delivered before",
    "priority": "that counts in its queue; 0 in a queue without priorities",
    "persistent": "whether it survives a restart of the whole group",
    "digest": "over the heads of its operations, in hexadecimal",
}
"""What a field means wherever its event says nothing else."""


# -- what digests cover (`event_digest`) ------------------------------------------------------------------------------

P: Final = (1 << 31) - 1
GROUPS: Final[tuple[tuple[str, ...], ...]] = (
    (
        *("offset", "at_ms", "tx", "vhost", "queue", "queue_id", "id", "place", "count", "csn", "size", "persistent"),
        *("exchange", "routing_key", "deadline_ms", "ttl_ms", "redelivered", "parted", "logged"),
        "priority",
    ),
    (
        *("stable", "applied_before", "decided_at", "first_offset", "sync", "content_crc", "events", "digest"),
        *("durable_events", "durable_digest", "name", "owner", "queues", "primary_ms", "prepare_offset", "reason"),
        *("last_offset", "answer", "outcome", "client", "channel", "tag", "known_at", "branches", "event_digest"),
    ),
    (
        *("what", "type", "durable", "auto_delete", "messages_logged", "primary", "transients_lost", "xid", "upto"),
        *("end_before", "targets", "vote", "backup", "role", "was", "status", "listed", "members", "min_insync"),
        *("ready", "linked"),
    ),
    (
        *("blockers", "left", "data", "acked", "catches_up", "by", "lifted", "successor", "peer", "cause"),
        *("segment", "previous_events"),
    ),
    ("failures", "hand_outs", "due_ms", "destination"),
)
"""No field leaves its group: digests of feeds that are written would change. A new field may join one, if its default is empty or
0 in each event: then rows without that field keep their digests."""
FREQUENT: Final = frozenset(
    {
        *("enqueue", "dequeue", "assign", "open", "close", "prepare", "commit", "rollback", "apply", "append", "hole"),
        *("told", "confirm", "deliver", "requeue", "segment"),
    }
)
"""Events of which the first `OF_ALL` groups count. Of other events all groups do: an audit reads the columns of rare events for
few rows. The fields of `segment` are what digests are held against."""
OF_ALL: Final = 2
HEADS: Final = ("event", "founding", "epoch")
DEFAULTS: Final[dict[str, int]] = {
    field.name: int(field.default)
    for kind in EVENT_TYPES
    for field in msgspec.structs.fields(kind)
    if field.default not in (msgspec.NODEFAULT, "")
}
"""Of fields whose default, in some event, is no empty text: what counts as nothing in all events."""


def weight(field: str) -> int:
    """Of a field, and of ``event``: an odd number of 26 bits."""
    return crc32(field.encode()) & 0x3FF_FFFF | 1


def text_value(text: str) -> int:
    """Of a text."""
    return crc32(text.encode())
