"""Statements: what brokers say to each other must be so when they say it.

An ACK says that everything up to an offset is on this broker's disk. A NO says that this broker refuses a transaction; from
then on it says nothing that could be taken for a yes, until the refusal has ended: by a ROLLBACK in its log, by a cut
that takes the PREPARE away, or because it rejoins as new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.checkers.chosen_log import durable_end
from tests.simulator.checkers.reference import Fate, Reference, ReferenceTransaction
from tests.simulator.ledger import Violation
from understudy.replicator import wire

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode
    from tests.simulator.sim_store import SimStore


class Statements:
    """G2 agreed (votes), G4 durable (acknowledgements)."""

    def __init__(self, store: SimStore, reference: Reference) -> None:
        self._store = store
        self._reference = reference
        self._no_votes: dict[tuple[str, int], tuple[int, int]] = {}

    def sent(self, node: SimNode, target: SimNode, message: bytes) -> None:
        """``node`` says ``message`` to ``target``."""
        kind = message[0]
        if kind == wire.BASE and wire.base_form(message) == wire.BASE_NEW:
            # A new copy begins there: what it refused before is over.
            self._no_votes = {no: at for no, at in self._no_votes.items() if no[0] != target.name}
        elif kind == wire.ACK:
            self._acknowledged(node, wire.decode_number(message))
        elif kind == wire.NO:
            tx_id, offset, _ = wire.decode_no(message)
            epoch = node.node.state.log.epochs.epoch_at(offset)
            self._no_votes[(node.name, tx_id)] = (offset, epoch)

    def _acknowledged(self, node: SimNode, offset: int) -> None:
        durable = durable_end(node)
        if offset > durable:
            raise Violation("G4", f"{node.name} acknowledges {offset}, its journal is durable up to {durable}")
        for (name, tx_id), (prepared, epoch) in list(self._no_votes.items()):
            if name == node.name and offset >= prepared and self._stands(node, tx_id, prepared, epoch):
                text = f"{name} acknowledges {offset} past the PREPARE at {prepared} of transaction {tx_id}, which it refused"
                raise Violation("G2", text)

    def _stands(self, node: SimNode, tx_id: int, prepared: int, epoch: int) -> bool:
        """True if a refusal still stands; one that has ended is forgotten."""
        log = node.node.state.log
        tx = node.node.state.transactions.get(tx_id)
        stands = (
            log.start < prepared <= log.end
            and log.epochs.epoch_at(prepared) == epoch
            and self._reference.fates.get(tx_id) is not Fate.ROLLED_BACK
            and not (tx is not None and tx.rolls_back)
        )
        if not stands:
            del self._no_votes[(node.name, tx_id)]
        return stands

    def committed(self, tx: ReferenceTransaction) -> None:
        """The chosen log commits ``tx``: nobody who may be promoted may stand against it."""
        group = self._store.group
        for node in self._store.nodes.values():
            no = self._no_votes.get((node.name, tx.tx_id))
            if no is None or group is None or node.name not in group.members or not node.up:
                continue
            if self._stands(node, tx.tx_id, *no):
                raise Violation(
                    "G2", f"transaction {tx.tx_id} is committed, and {node.name}, which may be promoted, refused it"
                )
