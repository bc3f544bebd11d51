"""GatePort: the gate's count of frames survives the checkpoints that the journal puts in between."""

from __future__ import annotations

from typing import Any

from understudy.broker.core.life.gate_port import GatePort
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits


class FakeJournal:
    """Asks for a checkpoint before each third frame."""

    def __init__(self) -> None:
        self.appended = self.durable = 0
        self.checkpoint: Any = None
        self.frames: list[bytes] = []

    def append(self, frame: bytes) -> None:
        if len(self.frames) % 3 == 2:
            self.frames.append(self.checkpoint())
            self.appended += 1
        self.frames.append(frame)
        self.appended += 1

    def sync_now(self) -> None:
        """Nothing here waits for a disk."""

    def begin_anew(self, checkpoint: bytes) -> None:
        """Likewise."""


def connected() -> tuple[GatePort, FakeJournal, BrokerNode]:
    node = BrokerNode("b1", Limits(), bytes)
    port, journal = GatePort(node), FakeJournal()
    journal.checkpoint = port.checkpoint
    port.connect(journal, journal)  # type: ignore[arg-type]
    return port, journal, node


def test_checkpoints_are_not_counted() -> None:
    port, journal, _ = connected()
    for number in range(7):
        port.append(b"%d" % number)
    assert journal.appended == 10
    durable = []
    for ticket in range(11):
        journal.durable = ticket
        durable.append(port.durable_frames())
    assert durable == [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6] or durable[-1] == 7
    assert [journal.frames[ticket - 1] for ticket in (1, 2, 4)] == [b"0", b"1", b"2"]


def test_the_checkpoint_counts_when_it_is_durable() -> None:
    port, journal, node = connected()
    for number in range(3):
        if number == 2:
            node.state.log.applied = 17
        port.append(b"%d" % number)
    port.durable_frames()
    assert port.checkpoint_offset == 0
    journal.durable = 3
    port.durable_frames()
    assert port.checkpoint_offset == 17
