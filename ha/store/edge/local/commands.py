"""The store for commands: read, and written over the head of a primary, whether or not any broker runs."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import attrs

from understudy.ha.store.coordination import BrokerId, BrokerInfo, GroupState, HistoryEntry, StoreChangedError
from understudy.ha.store.edge.local.processes import is_there, machine_ms, shown, this_process
from understudy.ha.store.edge.local.store import CoordinationStore


@attrs.frozen
class FileAdmin:
    """Implements ``ha.store.coordination.StoreAdmin`` for one group of a file."""

    path: Path
    group: str

    def read(self, *, hanging_too: bool = False) -> tuple[GroupState | None, dict[BrokerId, BrokerInfo]]:
        if not self.path.exists():
            return None, {}
        return read_store(self.path, self.group, hanging_too=hanging_too)

    def replace(self, expected: GroupState, wanted: GroupState) -> GroupState:
        store = CoordinationStore(self.path)
        try:
            done, held = store.replace(self.group, expected, wanted, wall_ms=time.time_ns() // 1_000_000)
        finally:
            store.close()
        if not done:
            raise StoreChangedError(
                f"coordination file {self.path} has changed meanwhile: it holds {held}, not {expected}"
            )
        return wanted

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
        return force_epoch(
            self.path,
            self.group,
            broker,
            members,
            seen_epoch=seen_epoch,
            expected=expected,
            min_insync=min_insync,
            founding=founding,
        )

    def history(self) -> list[HistoryEntry]:
        if not self.path.exists():
            return []
        store = CoordinationStore(self.path, read_only=True)
        try:
            forced = [
                HistoryEntry(wall_ms=wall_ms, epoch=epoch, version=0, by="", what=f"forced: {broker} is the base")
                for epoch, broker, wall_ms in store.forced_epochs(self.group)
            ]
            return sorted([*forced, *store.history(self.group)], key=lambda entry: entry.wall_ms)
        finally:
            store.close()


def read_store(
    path: Path, group: str, *, hanging_too: bool = False
) -> tuple[GroupState | None, dict[BrokerId, BrokerInfo]]:
    """Content of the store, whether or not any broker runs.

    Args:
        path: of the store.
        group: which.
        hanging_too: a broker whose lease has ended counts as alive while its process is there: it may go on at any moment.

    Raises:
        StoreError: it cannot be read.
    """
    store = CoordinationStore(path, read_only=True)
    try:
        state, rows = store.read(group)
    finally:
        store.close()
    observer, now_ms = this_process(), machine_ms()
    found = {broker: shown(row, observer, now_ms) for broker, row in rows.items()}
    if hanging_too:
        found = {
            broker: attrs.evolve(info, alive=info.alive or is_there(rows[broker], observer))
            for broker, info in found.items()
        }
    return state, found


def force_epoch(
    path: Path,
    group: str,
    broker: BrokerId,
    members: tuple[BrokerId, ...],
    *,
    seen_epoch: int = 0,
    expected: GroupState | None = None,
    min_insync: int | None = None,
    founding: int = 0,
) -> GroupState:
    """Make ``broker`` the primary of a new epoch, over the head of whoever leads: for ``promote --unclean``.

    What only others hold is lost by that, so it is recorded in the store. A file that is missing is made.

    Args:
        path: of the store.
        group: which.
        broker: who is to lead; it need not run.
        members: the in-sync set of the new epoch; ``broker`` is one of it.
        seen_epoch: the highest epoch that the journal of ``broker`` has seen: the new one is above it.
        expected: what the store was found to hold, None for no such group.
        min_insync: of the group from now on; None: as it was (1 if nobody knows).
        founding: of the group to which the journal of ``broker`` belongs; 0 if it belongs to none: this founds one.

    Returns:
        What the store now holds.

    Raises:
        StoreError: it cannot be written, or does not hold ``expected`` any more.
    """
    store = CoordinationStore(path, create=True)
    try:
        return store.force(
            group,
            broker,
            members,
            seen_epoch=seen_epoch,
            wall_ms=time.time_ns() // 1_000_000,
            expected=expected,
            min_insync=min_insync,
            founding=founding or 1 + secrets.randbelow((1 << 63) - 1),
        )
    finally:
        store.close()


def forced_epochs(path: Path, group: str) -> list[tuple[int, BrokerId, int]]:
    """(epoch, broker, wall-clock ms) of each epoch that was forced, oldest first; none if there is no store."""
    if not path.exists():
        return []
    store = CoordinationStore(path, read_only=True)
    try:
        return store.forced_epochs(group)
    finally:
        store.close()
