"""KitBranch: one branch of a distributed transaction, as its transaction manager sees it (class 100, docs/dtx.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.frames import FrameParser
from understudy.broker.amqp.methods import (
    CHANNEL_OPEN,
    DTX_COMMIT,
    DTX_COMMIT_OK,
    DTX_END,
    DTX_PREPARE,
    DTX_PREPARE_OK,
    DTX_SELECT,
    DTX_START,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.testing.coordinator_kit.kit_broker import KitBroker
from understudy.testing.coordinator_kit.kit_client import CHANNEL, FRAME_MAX, connect

XID: Final = (17, b"kit", b"1")
NO_ANSWER: Final = -1


class KitBranch:
    """A connection with one branch."""

    def __init__(self, broker: KitBroker) -> None:
        self._broker = broker
        self._connection = connect(broker.node, self, "manager")
        self._parser = FrameParser(0)
        self._send((CHANNEL_OPEN,), (DTX_SELECT,), (DTX_START, *XID, False, False))

    def wake(self) -> None:
        """There is output; it is read when an answer is waited for."""

    def _send(self, *methods: tuple[Any, ...]) -> None:
        self._connection.receive(b"".join(encode_method(CHANNEL, *method) for method in methods))

    def _answer(self, key: int) -> int:
        for event in self._parser.feed(b"".join(self._connection.take_output())):
            if event[1] == key:
                return int(event[2][0])
        return NO_ANSWER

    def prepare(self, messages: Mapping[str, int]) -> int:
        """Publish so many messages to each queue, end the branch, prepare it. Returns the status, 0 for yes."""
        properties = encode_properties(delivery_mode=2)
        for queue, count in messages.items():
            for number in range(count):
                body = f"branch/{queue}/{number}".encode()
                self._connection.receive(publish_frames(CHANNEL, "", queue, properties, body, FRAME_MAX))
        self._send((DTX_END, *XID, False, False), (DTX_PREPARE, *XID))
        self._broker.sync()
        return self._answer(DTX_PREPARE_OK)

    def commit(self, settle: Callable[[], object]) -> int:
        """Commit it. ``settle`` waits for answers. Returns the status; `NO_ANSWER` if none has come."""
        self._send((DTX_COMMIT, *XID, False))
        settle()
        return self._answer(DTX_COMMIT_OK)
