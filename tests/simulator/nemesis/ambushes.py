"""Ambushes: strikes that wait for a moment of the protocol: a message, a record, a change of the set, a promotion."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from tests.simulator.world import MS
from understudy.broker.log import frame, record
from understudy.ha.store.coordination import GroupState
from understudy.replicator import wire

if TYPE_CHECKING:
    from tests.simulator.cluster import SimCluster
    from tests.simulator.sim_node import SimNode

MESSAGES = {
    "SYNC": wire.SYNC,
    "RESUME": wire.RESUME,
    "CATCH_UP": wire.CATCH_UP,
    "IDS": wire.IDS,
    "BASE": wire.BASE,
    "TRANSACTION": wire.TRANSACTION,
    "QUEUE": wire.QUEUE,
    "CAUGHT_UP": wire.CAUGHT_UP,
    "PIECE_ACK": wire.PIECE_ACK,
    "NO": wire.NO,
}
HAPPENINGS = {wire.CATCH_UP: "catch-up", wire.RESUME: "resume", wire.NO: "no"}
"""Messages that are counted: each is a turn of the protocol that a sweep must have seen."""
RECORDS = {
    "PREPARE": record.PREPARE,
    "COMMIT": record.COMMIT,
    "ROLLBACK": record.ROLLBACK,
    "EPOCH": record.EPOCH,
    "DTX_PREPARE": record.DTX_PREPARE,
    "DTX_ROLLBACK": record.DTX_ROLLBACK,
}
OF_BRANCHES = ("DTX_PREPARE", "DTX_ROLLBACK")
"""Moments that come only where there are distributed transactions."""
STORE = ("the set grew", "the set shrank", "a promotion", "an answer was lost")
MOMENTS = (*MESSAGES, *RECORDS, *STORE)
PATIENCE_MS = 3_000

Spring = Callable[[list["SimNode"]], None]
"""Called with the brokers whom the moment concerns, in the midst of the turn of one of them."""


@attrs.define(eq=False)
class _Ambush:
    """Springs at the moment after ``countdown`` others of its kind."""

    moment: str
    countdown: int
    spring: Spring


class Ambushes:
    """All that wait, and what they wait for."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._waiting: list[_Ambush] = []

    def watch(self) -> None:
        """Begin to look at what happens (besides `store_changed`, which the cluster tells)."""
        self._cluster.network.on_arrived = self._message_arrived
        self._cluster.store.on_lost_answer = self._answer_lost

    @property
    def any(self) -> bool:
        return bool(self._waiting)

    def lay(self, moment: str, countdown: int, spring: Spring) -> None:
        """``spring`` is called once, or never if the moment does not come for long."""
        ambush = _Ambush(moment, countdown, spring)
        self._waiting.append(ambush)
        self._world.at(PATIENCE_MS * MS, self._give_up, ambush)

    def _give_up(self, ambush: _Ambush) -> None:
        if ambush in self._waiting:
            self._waiting.remove(ambush)

    def clear(self) -> None:
        self._waiting.clear()

    # -- moments --------------------------------------------------------------------------------------------------

    def _message_arrived(self, source: SimNode, target: SimNode, message: bytes) -> None:
        kind = message[0]
        happening = HAPPENINGS.get(kind)
        if happening is not None:
            self._world.happened[happening] += 1
        if not self._waiting:
            return
        for moment in dict.fromkeys(ambush.moment for ambush in self._waiting):
            if MESSAGES.get(moment) == kind or (
                kind == wire.BATCH and moment in RECORDS and _holds(message[9:], RECORDS[moment])
            ):
                self._moment(moment, [source, target])

    def store_changed(self, before: GroupState | None, after: GroupState) -> None:
        if not self._waiting or before is None:
            return
        if after.epoch > before.epoch:
            moment = "a promotion"
        else:
            moment = "the set grew" if len(after.members) > len(before.members) else "the set shrank"
        concerned = {*before.members} ^ {*after.members} | {after.primary}
        self._moment(moment, [self._cluster.nodes[name] for name in sorted(concerned)])

    def _answer_lost(self, node: SimNode) -> None:
        self._moment("an answer was lost", [node, *(other for other in self._cluster.nodes.values() if other.up)])

    def _moment(self, moment: str, concerned: list[SimNode]) -> None:
        for ambush in [ambush for ambush in self._waiting if ambush.moment == moment]:
            if ambush.countdown:
                ambush.countdown -= 1
            else:
                self._waiting.remove(ambush)
                ambush.spring(concerned)


def _holds(batch: bytes, wanted: int) -> bool:
    """True if the batch holds a record of a kind."""
    at = frame.BATCH_HEADER_BYTES
    while at < len(batch):
        kind, length = record.HEAD.unpack_from(batch, at)
        if kind & 0x7F == wanted:
            return True
        at += 5 + length
    return False
