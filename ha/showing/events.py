"""Changes in a group, as facts for operators: the primary, the members of the set, the backups that catch up and how.

The core tells its host of each when it has happened (``HaHost.happened``). They are rare, a handful for each failover and
one in some seconds for a backup that is not ready, and no decision hangs on them: the host writes them to the log.
"""

from __future__ import annotations

from typing import ClassVar

import attrs


@attrs.frozen(kw_only=True)
class StatusChanged:
    """This broker's status is another one.

    Attributes:
        blockers: what is between it and ready or active, "" for nothing.
        listed: whether it is in the in-sync set, as it has seen that last.
        stable: how far it knows its log to be stable.
    """

    name: ClassVar = "status"
    status: str
    was: str
    epoch: int
    primary: str
    blockers: str
    listed: bool = True
    stable: int = -1


@attrs.frozen(kw_only=True)
class SetChanged:
    """The primary begins to lead with this in-sync set, or has learnt that the stored one is another.

    Attributes:
        joined: those that were not in it before.
        left: those that were.
        reason: why a broker was removed, if one was.
        lost: of those that left: whose disk was lost or replaced.
        acked: how far each of those that joined has acknowledged the log, in their order; -1 if that is not known.
        catching_up: those that joined, and that lack pieces of a catch-up still.
        stable: how far this primary knows its log to be stable.
    """

    name: ClassVar = "in-sync set"
    epoch: int
    in_sync: tuple[str, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    reason: str
    lost: tuple[str, ...] = ()
    acked: tuple[int, ...] = ()
    catching_up: tuple[str, ...] = ()
    stable: int = -1


@attrs.frozen(kw_only=True)
class BackupResumes:
    """The primary's kept log reaches back to where ``backup`` left.

    Attributes:
        after: the log goes on after this offset at the backup.
        cut: records after it that the backup held and drops.
        behind: records that it is sent.
        refill: transient messages are sent anew, since it has restarted.
    """

    name: ClassVar = "backup resumes"
    backup: str
    after: int
    cut: int
    behind: int
    refill: bool


@attrs.frozen(kw_only=True)
class CatchUpBegins:
    """``backup`` is brought up by the ids it holds: ``messages`` of ``queues`` and ``transactions`` are sent.

    Attributes:
        base: the log goes on after this offset at the backup.
    """

    name: ClassVar = "catch-up begins"
    backup: str
    base: int
    queues: int
    messages: int
    transactions: int


@attrs.frozen(kw_only=True)
class CatchUpEnds:
    """``backup`` holds all that its catch-up had to bring."""

    name: ClassVar = "catch-up ends"
    backup: str
    took_ms: int


@attrs.frozen(kw_only=True)
class BackupNotReady:
    """``backup`` is not ready for some seconds, or what is between has changed since this was told last.

    Attributes:
        since: wall-clock time of its present link, or of losing it.
        blockers: which queues, which transactions, how many messages are left.
    """

    name: ClassVar = "backup not ready"
    backup: str
    listed: bool
    linked: bool
    since: str
    blockers: str


@attrs.frozen(kw_only=True)
class TransactionRefused:
    """A member of the set said no to a transaction, which is rolled back everywhere. ``prepare_offset``: of its PREPARE."""

    name: ClassVar = "transaction refused"
    backup: str
    tx: str
    prepare_offset: int
    reason: str


@attrs.frozen(kw_only=True)
class TrackerAdded:
    """A transaction closed of which ``backup`` lacks ``left`` ids of ``queue``."""

    name: ClassVar = "tracker added"
    level: ClassVar = "debug"
    backup: str
    tx: str
    queue: str
    left: int


@attrs.frozen(kw_only=True)
class TrackerCleared:
    """``backup`` holds all of that transaction now."""

    name: ClassVar = "tracker cleared"
    level: ClassVar = "debug"
    backup: str
    tx: str


@attrs.frozen(kw_only=True)
class LinkRefused:
    """This broker has ended a link for what ``peer`` is or sent. Both try again, ever more slowly."""

    name: ClassVar = "link refused"
    peer: str
    reason: str


@attrs.frozen(kw_only=True)
class LogLetGo:
    """This backup, which is not listed, has let go of its log up to ``end`` and of all its messages; the group holds them."""

    name: ClassVar = "log let go"
    end: int
    reason: str


@attrs.frozen(kw_only=True)
class LogFormatRaised:
    """Every broker of the group reads ``record_format`` now: from here on the primary writes it."""

    name: ClassVar = "log format"
    epoch: int
    record_format: int


@attrs.frozen(kw_only=True)
class LogLacksRecords:
    """The log of ``damaged`` lacks, or may lack, records that the group has acknowledged.

    Attributes:
        lacks: which, and how that is known.
        then: what this broker does about it, and what an operator can do.
    """

    name: ClassVar = "log lacks records"
    level: ClassVar = "error"
    damaged: str
    lacks: str
    then: str


@attrs.frozen(kw_only=True)
class LeadHandedOver:
    """This broker has restarted, and ``to`` holds more of the same log: that one leads instead.

    Attributes:
        end: this broker's log ended here when its epoch began.
        held: the last offset that ``to`` holds.
    """

    name: ClassVar = "lead handed over"
    to: str
    end: int
    held: int


@attrs.frozen(kw_only=True)
class LogMended:
    """``broker`` holds the whole log again: it may lead."""

    name: ClassVar = "log mended"
    broker: str
    lacked: str


@attrs.frozen(kw_only=True)
class StepDownBegins:
    """This primary is to hand over to ``successor``, as the user ``by`` wants. It takes no new work from here on."""

    name: ClassVar = "step-down begins"
    successor: str
    by: str


@attrs.frozen(kw_only=True)
class StepDownFails:
    """The step-down has come to nothing: this primary leads on, and takes work again."""

    name: ClassVar = "step-down fails"
    reason: str


@attrs.frozen(kw_only=True)
class BrokerBarred:
    """An operator (``by``) keeps ``barred`` out of the in-sync set, or (``lifted``) does so no more."""

    name: ClassVar = "broker barred"
    barred: str
    lifted: bool
    by: str


@attrs.frozen(kw_only=True)
class StoreLacksGroup:
    """The coordination store answers, and does not hold the group any more, or holds an older state of it.

    Attributes:
        missing: what stands there instead, and where.
    """

    name: ClassVar = "coordination store has lost the group"
    level: ClassVar = "error"
    missing: str


@attrs.frozen(kw_only=True)
class StoreHoldsGroup:
    """A store that had lost the group holds it again."""

    name: ClassVar = "coordination store holds the group again"
    epoch: int
    version: int


@attrs.frozen(kw_only=True)
class GroupWrittenAnew:
    """The primary has written the group into a store that had lost it.

    Attributes:
        since: what the store showed until then.
    """

    name: ClassVar = "group written anew"
    level: ClassVar = "error"
    epoch: int
    version: int
    in_sync: tuple[str, ...]
    since: str


HaEvent = (
    StatusChanged
    | SetChanged
    | BackupResumes
    | CatchUpBegins
    | CatchUpEnds
    | BackupNotReady
    | TransactionRefused
    | TrackerAdded
    | TrackerCleared
    | LinkRefused
    | LogLetGo
    | LogFormatRaised
    | LogLacksRecords
    | LeadHandedOver
    | LogMended
    | StepDownBegins
    | StepDownFails
    | BrokerBarred
    | StoreLacksGroup
    | StoreHoldsGroup
    | GroupWrittenAnew
)
