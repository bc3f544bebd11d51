"""The ports to the coordination store, which alone outside the brokers keeps epoch, primary and in-sync set.

:class:`Coordination` is for a broker. Requests return at once; answers come to a :class:`CoordinationListener`, in the order of
the requests, or never (the answer is lost). What is asked is idempotent or checked by (epoch, version), so a lost answer is
settled by reading.

:class:`StoreAdmin` is for commands: it waits for its answers, and needs no broker that runs.

Drivers: ``ha/store/edge/local`` (a SQLite file), ``ha/store/edge/zookeeper/store.py``. ``ha/store/edge/stores.py`` chooses by
the configuration. The contract, asked of each: ``tests/integration/test_store_contract.py``.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import attrs

from understudy.broker.errors import UnderstudyError
from understudy.replicator.receiving.disk_claim import DiskClaim

BrokerId = str


class StoreError(UnderstudyError):
    """The coordination store cannot be used. The message names the file, or the path of the node."""


class StoreChangedError(StoreError):
    """The store does not hold any more what a command was decided on; nothing was changed."""


@attrs.frozen
class Damage:
    """A broker must not lead: its log lacks, or may lack, records that the group has acknowledged.

    Attributes:
        broker: which.
        lacks: what is missing and how that is known, for operators.
    """

    broker: BrokerId
    lacks: str


@attrs.frozen
class Bar:
    """An operator keeps a broker out of the in-sync set, until another command undoes it.

    Attributes:
        broker: which.
        by: the user who gave the command, and to which broker.
        since: wall-clock time, as people read it.
    """

    broker: BrokerId
    by: str = ""
    since: str = ""


def bar_text(bar: Bar) -> str:
    """The text that tells operators and the barred broker of the bar."""
    return f"an operator has expelled it ({bar.by}, {bar.since}): it stays out until `understudy admit {bar.broker}`"


@attrs.frozen(kw_only=True)
class GroupState:
    """State of a group in the store.

    Attributes:
        epoch: raised by one at each promotion.
        primary: who was promoted under it.
        members: the in-sync set, sorted: who may be promoted.
        version: raised by one at each change of anything here.
        min_insync: the smallest set under which work is confirmed.
        founding: a random number, 1 to 2**63 - 1, drawn when the group was founded; two groups of one name differ in it. Epochs
            do not tell them apart: both begin with 1.
        forced: the newest epoch that an operator has forced (``promote --unclean``), 0 for none. What was stable before it and is
            not in the log of its base is lost by that decision.
        damaged: the brokers that must not lead, by id. No campaign of one of them is tried; whoever leads clears the entry of a
            broker that holds the whole log again.
        successor: the broker to which the primary of this epoch has handed over, "" for none: that one is to lead the next epoch.
        barred: the brokers that an operator has expelled, by id: `barred & members == {}`.
    """

    epoch: int
    primary: BrokerId
    members: tuple[BrokerId, ...]
    version: int
    min_insync: int
    founding: int = 0
    forced: int = 0
    damaged: tuple[Damage, ...] = ()
    successor: BrokerId = ""
    barred: tuple[Bar, ...] = ()

    def damage_of(self, broker: BrokerId) -> str:
        """Records that the log of ``broker`` lacks as far as the store knows, "" for none."""
        return next((each.lacks for each in self.damaged if each.broker == broker), "")

    def with_damage(self, broker: BrokerId, lacks: str) -> tuple[Damage, ...]:
        """:attr:`damaged` with this entry for ``broker``; without an entry for it if ``lacks`` is ""."""
        others = [each for each in self.damaged if each.broker != broker]
        return tuple(sorted([*others, Damage(broker, lacks)] if lacks else others, key=lambda each: each.broker))

    def bar_of(self, broker: BrokerId) -> Bar | None:
        """How ``broker`` is barred, None if it is not."""
        return next((each for each in self.barred if each.broker == broker), None)

    def barring(self, bar: Bar) -> GroupState:
        """This state, less ``bar.broker`` in the set, and with the bar; the version is the caller's business."""
        members = tuple(each for each in self.members if each != bar.broker)
        others = [each for each in self.barred if each.broker != bar.broker]
        barred = tuple(sorted([*others, bar], key=lambda each: each.broker))
        return attrs.evolve(self, members=members, barred=barred)

    def admitting(self, broker: BrokerId) -> GroupState:
        """This state without a bar of ``broker``, which is not in the set by that."""
        return attrs.evolve(self, barred=tuple(each for each in self.barred if each.broker != broker))


@attrs.frozen(kw_only=True)
class BrokerInfo:
    """State of a broker, as the broker publishes it.

    Attributes:
        link: where its backups connect.
        blockers: what keeps it from being ready or active, and since when it has had this status.
        alive: its session or lease holds.
        claim: what its disk holds. The store keeps the last one when the broker's session ends, and when it publishes None: its
            next process has to read what this one has said.
    """

    broker: BrokerId
    link: str
    amqp: str
    http: str = ""
    status: str = ""
    position: int = 0
    pid: int = 0
    blockers: str = ""
    alive: bool = True
    claim: DiskClaim | None = None


class Answer(Enum):
    """DONE: the store holds what was asked for. CONFLICT: it holds something else and was not changed. LOST: unknown."""

    DONE = "done"
    CONFLICT = "conflict"
    LOST = "lost"


class CoordinationListener(Protocol):
    """Receiver of changes and answers. All calls come from the driver, one at a time."""

    def group_changed(self, group: GroupState | None, brokers: dict[BrokerId, BrokerInfo]) -> None:
        """The store as it is, or was a moment ago; None while no group was ever founded."""

    def answered(self, request: int, answer: Answer, group: GroupState | None) -> None:
        """The answer to one request; ``group`` is what the store then held (None with LOST)."""

    def coordination_lost(self) -> None:
        """The store cannot be reached: SUSPENDED, or the lease could not be renewed."""

    def coordination_regained(self) -> None:
        """The store can be reached again."""


class Coordination(Protocol):
    """Requests. ``request`` is a number of the caller's, for the answer."""

    def found(self, request: int, group: GroupState) -> None:
        """Write the first state of the group.

        CONFLICT if there is one already; or if there was one: a broker has shown what its disk holds of it (`BrokerInfo.claim`).
        """

    def replace(self, request: int, expected: GroupState, wanted: GroupState) -> None:
        """Compare-and-set: write ``wanted`` if the store holds founding, epoch and version of ``expected``."""

    def restore(self, request: int, shown: GroupState | None, wanted: GroupState) -> None:
        """Write ``wanted`` if the store shows exactly ``shown`` (None: no group), and its history no epoch above ``wanted.epoch``.

        The history says that the group was written anew. CONFLICT, with what the store holds, changes nothing.
        """

    def read(self, request: int) -> None:
        """Answer DONE with what the store holds now."""

    def publish(self, info: BrokerInfo) -> None:
        """Say what this broker is; also keeps its session or lease alive."""


@attrs.frozen(kw_only=True)
class HistoryEntry:
    """One change of the group that the store remembers.

    Attributes:
        wall_ms: when, by the clock of the writer.
        epoch, version: of the group after the change.
        by: the broker that wrote the change; "" for an operator's command.
        what: the change, for people.
    """

    wall_ms: int
    epoch: int
    version: int
    by: BrokerId
    what: str

    @property
    def is_forced(self) -> bool:
        """An operator has forced this epoch: the entry is never removed."""
        return self.what.startswith("forced")


class StoreAdmin(Protocol):
    """The store of one group for commands, whether or not any broker runs. Each call raises StoreError if it cannot be done."""

    def read(self, *, hanging_too: bool = False) -> tuple[GroupState | None, dict[BrokerId, BrokerInfo]]:
        """Content of the store; a store that was never made holds nothing.

        Args:
            hanging_too: a broker counts as alive as long as its process is known to be there: a broker that hangs may go on.
                A store that several hosts share does not know that.
        """

    def replace(self, expected: GroupState, wanted: GroupState) -> GroupState:
        """Write ``wanted`` if the store holds founding, epoch and version of ``expected``; returns what it holds then.

        Raises:
            StoreChangedError: it holds something else.
        """

    def force(
        self,
        broker: BrokerId,
        members: tuple[BrokerId, ...],
        *,
        seen_epoch: int = 0,
        expected: GroupState | None = None,
        min_insync: int | None = None,
        founding: int = 0,
    ) -> GroupState:
        """Make ``broker`` the primary of a new epoch, whoever leads: for ``promote --unclean``. It is recorded for good.

        Args:
            broker: it need not run.
            members: the in-sync set of the new epoch; ``broker`` is one of it.
            seen_epoch: the highest epoch that the journal of ``broker`` has seen: the new one is above it.
            expected: what the store was found to hold, None for no such group.
            min_insync: of the group from now on; None: as it was (1 if it is not known).
            founding: of the group to which the journal of ``broker`` belongs; 0 if it belongs to none: this founds one.

        Raises:
            StoreChangedError: the store does not hold ``expected`` any more.
        """

    def history(self) -> list[HistoryEntry]:
        """The newest changes of the group, oldest first; forced epochs are never left out."""
