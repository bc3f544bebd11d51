"""A BASE that cannot be taken must not be in the journal, or the broker that refused it cannot start any more."""

from __future__ import annotations

import struct

import attrs
import pytest

from tests.unit.core.life.recovery_kit import KeptJournal
from understudy.broker.core.life.meta import Meta
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.life.recovery import Recovery
from understudy.broker.core.limits import Limits
from understudy.broker.errors import UnderstudyError
from understudy.broker.log import frame, record
from understudy.broker.log.journal_gate import JournalGate
from understudy.replicator import wire
from understudy.replicator.receiving.broker_replicator import BrokerReplicator

REFUSALS = (UnderstudyError, struct.error, ValueError, IndexError, OverflowError)
"""As `HaBroker.link_message` has them."""


@pytest.mark.parametrize("form", [wire.BASE_NEW, wire.BASE_AGAIN])
def test_a_base_with_a_broken_record(form: int) -> None:
    node = BrokerNode("b1", Limits(), bytes)
    journal = KeptJournal()
    replicator = BrokerReplicator(node.state)
    replicator.recovered(JournalGate(journal))
    replicator.link(lambda message: None)
    replicator.take(wire.encode_catch_up(1))
    meta = attrs.evolve(Meta.of(node.state), topology=(record.HEAD.pack(record.QUEUE_DECLARE, 4) + bytes(4),))
    with pytest.raises(REFUSALS):
        replicator.take(wire.encode_base(form, meta.encode()))
    again = BrokerNode("b1", Limits(), bytes)
    recovery = Recovery(again.state, BrokerReplicator(again.state).replay_note, None)
    for data in journal.frames:
        recovery.on_note(data[5], data[frame.NOTE_HEADER_BYTES :])
