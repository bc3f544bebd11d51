"""A core whose journal is kept, and what a recovery makes of that."""

from __future__ import annotations

from tests.unit.core.core_kit import Core
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.broker.log import frame


class KeptJournal:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def append(self, frame: bytes) -> None:
        self.frames.append(frame)

    def begin_anew(self, checkpoint: bytes) -> None:
        raise AssertionError("nobody lets go of this journal")

    def sync_now(self) -> None:
        pass


class KeptCore(Core):
    """A core whose journal can be read."""

    def __init__(self) -> None:
        self.journal = KeptJournal()
        super().__init__(journal=self.journal)


def recovered(frames: list[bytes], node: BrokerNode | None = None) -> BrokerNode:
    """A core, by default one of its own, that has been shown these frames."""
    node = node or BrokerNode("b1", Limits(), bytes)
    for data in frames:
        if data.startswith(frame.NOTE_MAGIC):
            node.recovery.on_note(data[5], data[frame.NOTE_HEADER_BYTES :])
        else:
            node.recovery.on_batch(frame.decode_batch_header(data, 0), data)
    node.recovery.finish()
    return node


def bodies(node: BrokerNode) -> dict[str, list[bytes]]:
    return {
        queue.name: [bytes(entry.message.content()) for entry in queue.entries.values()]
        for queue in node.state.queues.values()
    }
