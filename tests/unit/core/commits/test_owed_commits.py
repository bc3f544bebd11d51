"""A COMMIT that was lost with a primary is written again by whoever holds the transaction as applied (found by the model)."""

from __future__ import annotations

from tests.unit.core.core_kit import Core, end_turn, publish
from understudy.broker.amqp.methods import TX_COMMIT, TX_SELECT, encode_method
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, record
from understudy.broker.log.journal_gate import JournalGate
from understudy.replicator import wire
from understudy.replicator.receiving.broker_replicator import BrokerReplicator
from understudy.replicator.sending.catch_up import CatchUp


class Port:
    def append(self, frame: bytes) -> None:
        pass

    def begin_anew(self, checkpoint: bytes) -> None:
        raise AssertionError("nobody lets go of this journal")

    def sync_now(self) -> None:
        pass


def applied_and_not_written() -> Core:
    """A primary that has applied a transaction; its COMMIT is still in the open batch."""
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.send(encode_method(1, TX_SELECT), publish("q", b"x"), encode_method(1, TX_COMMIT))
    core.turn()
    core.node.durable_to(core.node.gate.appended)
    end_turn(core.node)
    state = core.node.state
    assert [entry.message.content() for queue in state.queues.values() for entry in queue.entries.values()] == [b"x"]
    assert state.log.closed_end < state.log.end
    assert len(state.applying.owed) == 1
    return core


def commits(node: BrokerNode) -> list[int]:
    """Ids of the COMMITs in the batches that this core has closed."""
    found = []
    kept = node.state.log.kept
    for batch in kept.since(kept.cursor(0)):
        for kind, at, _ in record.records_of(batch.frame, frame.BATCH_HEADER_BYTES):
            if kind & ~record.TRANSIENT == record.COMMIT:
                found.append(record.decode_commit(batch.frame, at)[0])
    return found


def test_who_was_caught_up_past_the_decision_writes_it_when_it_leads() -> None:
    core = applied_and_not_written()
    (tx_id,) = core.node.state.applying.owed
    joiner = BrokerNode("b2", Limits(), bytes)
    replicator = BrokerReplicator(joiner.state)
    replicator.recovered(JournalGate(Port()))
    replicator.link(lambda message: None)
    replicator.take(wire.encode_catch_up(1))
    catch_up = CatchUp(core.node.state, {})
    for message in catch_up.opening():
        replicator.take(message)
    while (piece := catch_up.next_message()) is not None:
        replicator.take(piece)
    assert joiner.state.applying.owed == core.node.state.applying.owed
    replicator.unlink()
    joiner.open(Port(), 0, 0)
    end_turn(joiner, flush=True)
    assert commits(joiner) == [tx_id]
    joiner.durable_to(joiner.gate.appended)
    end_turn(joiner, flush=True)
    assert joiner.state.applying.owed == {}


def test_a_checkpoint_says_what_is_owed() -> None:
    core = applied_and_not_written()
    (tx_id,) = core.node.state.applying.owed
    data = core.node.checkpoint()
    again = BrokerNode("b1", Limits(), bytes)
    again.recovery.on_note(data[5], data[frame.NOTE_HEADER_BYTES :])
    again.open(Port(), 0, 0)
    end_turn(again, flush=True)
    assert commits(again) == [tx_id]


def test_what_stands_in_the_log_is_not_written_again() -> None:
    state = BrokerState()
    state.applying.owed[7] = 1
    state.taking.append_record(record.encode_commit(7, 1, 0))
    assert state.applying.owed_commits() == []
    state.applying.owed[8] = 2
    assert state.applying.owed_commits() == [(8, 2)]
