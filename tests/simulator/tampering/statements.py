"""A backup says what is not so, or what it must not say any more."""

from __future__ import annotations

from functools import partial

from tests.simulator import calls
from tests.simulator.scenario import Hand, Scenario
from tests.simulator.tampering.tampering import tampering
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState
from understudy.replicator import wire

complaint = partial(tampering, "checkers/statements")


def say(group: Scenario, message: bytes) -> None:
    """The first backup says that to the primary; the primary does not hear it."""
    sent = group.cluster.network.on_sent
    assert sent is not None
    sent(group.backups[0], group.primary, message)


def mirrored(group: Scenario) -> tuple[Hand, TxBuffer]:
    """An open transaction, and what the backup holds of it: all."""
    hand = group.hand(transactional=True)
    hand(calls.declare, "q")
    hand.publish("q", b"#1")
    backup = group.backups[0]
    group.until("mirrored", lambda: group.events(backup) == 1)
    tx = group.transaction(backup)
    assert tx is not None
    return hand, tx


@complaint("G4", "its journal is durable up to")
def a_backup_acknowledges_what_is_not_on_its_disk(group: Scenario) -> None:
    say(group, wire.encode_ack(group.backups[0].node.state.log.end + 1))


@complaint("G2", "past the PREPARE at {} of transaction {}, which it refused")
def a_backup_acknowledges_what_it_has_refused(group: Scenario) -> None:
    hand, tx = mirrored(group)
    say(group, wire.encode_no(tx.tx_id, tx.events[-1][0] + 1, "nobody knows why"))
    hand.committed()


@complaint("G2", "which may be promoted, refused it")
def a_backup_refuses_what_it_has_acknowledged(group: Scenario) -> None:
    hand, tx = mirrored(group)
    primary = group.primary
    group.hold_disk(primary)
    hand.commit()
    leads = primary.ha.primary
    assert leads is not None
    remote = leads.backups[group.backups[0].name]
    group.until("acknowledged", lambda: 0 < tx.prepare_offset <= remote.acked)
    say(group, wire.encode_no(tx.tx_id, tx.prepare_offset, "nobody knows why"))
    group.free_disk(primary)
    group.until("committed", lambda: tx.state is TxState.COMMITTED)
