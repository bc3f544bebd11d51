"""Bugs of the turn: its steps come in another order, or one is forgotten."""

from __future__ import annotations

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.life.turn import TurnEngine
from understudy.ha.leading.primary import Primary
from understudy.replicator.wire import ACK


@mutation("G4", "G6", "G7")
def clients_flushed_before_the_journal_answers(bug: Bug) -> None:
    """A turn takes its own batch for durable when it gives it to the disk, and answers its clients at once."""
    real = TurnEngine.end

    def end(self: TurnEngine) -> None:
        node = self.node
        if node is not None and node.broker.role.leading and node.gate.appended:
            node.gather(True)
            bug.strike()
            node.durable_to(node.gate.appended)
        real(self)

    bug.replace(TurnEngine, "end", end)


@mutation("turns")
def a_lazy_flush_is_forgotten(bug: Bug) -> None:
    """What a turn leaves for later waits for the next turn that flushes, and none is asked for."""

    def leave(self: TurnEngine) -> None:
        bug.strike()
        self.left = True

    bug.replace(TurnEngine, "_leave", leave)


@mutation("turns")
def the_last_acknowledgement_ends_no_turn(bug: Bug) -> None:
    """An acknowledgement never ends a turn, as if another were always to come."""
    real = Primary.due_after

    def due_after(self: Primary, message: bytes) -> bool:
        due = real(self, message)
        if due and message[:1] == bytes([ACK]):
            bug.strike()
            return False
        return due

    bug.replace(Primary, "due_after", due_after)
