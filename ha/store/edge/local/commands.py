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
        store = CoordinationStore(self.path, read_only=True)
        try:
            state, rows = store.read(self.group)
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
        store = CoordinationStore(self.path, create=True)
        try:
            return store.force(
                self.group,
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
