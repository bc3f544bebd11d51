"""Bugs of bodies in parts: their records are let go too early, or too late."""

from __future__ import annotations

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.state.applying import Applying
from understudy.broker.core.state.record_taking import RecordTaking
from understudy.broker.transactions.tx_buffer import TxBuffer


@mutation("G1", "G4", "G5")
def the_floor_forgets_parts(bug: Bug) -> None:
    """A message keeps the segment of its own record, and not those of its parts."""
    real = Applying._commit

    def commit(self: Applying, tx: TxBuffer) -> None:
        for offset, message, _ in tx.events:
            if message is not None and message.offset < offset and tx.parts is not None:
                bug.strike()
                message.offset = offset
        real(self, tx)

    bug.replace(Applying, "_commit", commit)


@mutation("G2", "liveness")
def a_body_outlives_its_epoch(bug: Bug) -> None:
    """An EPOCH does not end a message of its own of which only parts are there."""
    real = RecordTaking._take_epoch

    def take_epoch(self: RecordTaking, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        passed_over = [
            tx for tx in self.transactions.values() if tx.closing is None and tx.parts is not None and not tx.messages()
        ]
        for tx in passed_over:
            bug.strike()
            del self.transactions[tx.tx_id]
        real(self, buf, at, end, offset, transient)
        self.transactions.update({tx.tx_id: tx for tx in passed_over})

    bug.replace(RecordTaking, "_take_epoch", take_epoch)
