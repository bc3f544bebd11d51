"""A core whose coordinator is a test's, and clients that commit in one turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tests.unit.core.core_kit import FRAME_MAX, Client, Core, HeldJournal, end_turn
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import TX_COMMIT, TX_SELECT, encode_method
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.coordinators import (
    Coordinator,
    CoordinatorChoice,
    CoordinatorHost,
    GroupCommitCoordinator,
    TxView,
)
from understudy.broker.core.limits import Limits
from understudy.broker.log import frame, record

BOUND_MS = 1_000


class Telling(GroupCommitCoordinator):
    """Writes down what it hears; a group at a time, as it comes. Subclasses change one thing."""

    def __init__(self, host: CoordinatorHost, options: dict[str, str]) -> None:
        super().__init__(host, options)
        self.told: list[tuple[str, str]] = []
        self.csns: list[int] = []
        self.errors: list[Sequence[str]] = []

    def prepare_ordered(self, tx: TxView, csn: int) -> None:
        self.told.append(("prepare_ordered", tx.name))

    def commit_ordered(self, tx: TxView, csn: int) -> None:
        self.csns.append(csn)
        self.told.append(("commit_ordered", tx.name))

    def rolled_back(self, tx: TxView, reason: str) -> None:
        self.told.append(("rolled_back", tx.name))

    def unlog(self, tx: TxView, errors: Sequence[str]) -> None:
        self.errors.append(errors)
        self.told.append(("unlog", tx.name))

    def names(self, hook: str) -> list[str]:
        return [name for each, name in self.told if each == hook]


class Frames(HeldJournal):
    """Keeps the batches."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []

    def append(self, frame: bytes) -> None:
        self.batches.append(frame)

    def prepared(self) -> list[int]:
        """The ids of the transactions whose PREPARE stands in the journal, in its order."""
        return [
            record.decode_prepare(batch, at).tx_id
            for batch in self.batches
            for kind, at, _ in record.records_of(batch, frame.BATCH_HEADER_BYTES)
            if kind & ~record.TRANSIENT == record.PREPARE
        ]


class Hosted(Core):
    """A lone broker under a coordinator."""

    def __init__(self, coordinator: type[Coordinator], limits: Limits | None = None, **options: str) -> None:
        self.frames = Frames()
        choice = CoordinatorChoice("mine", coordinator, options, BOUND_MS)
        super().__init__(limits, self.frames, choice)

    @property
    def order(self) -> Any:
        return self.broker.transactions.coordinator

    @property
    def coordinator(self) -> Any:
        return self.order._coordinator

    def clients(self, number: int, queue: str = "q") -> list[Client]:
        clients = [self.client() for _ in range(number)]
        self.queue(clients[0], queue)
        return clients

    def commit(self, client: Client, name: str, *, queue: str = "q", headers: dict[str, Any] | None = None) -> None:
        """A transaction of one message, whose body is its name; the turn is not ended."""
        properties = encode_properties({"headers": {"x-understudy-tx": name, **(headers or {})}, "delivery_mode": 2})
        publish = publish_frames(1, "", queue, properties, name.encode(), FRAME_MAX)
        client.connection.receive(encode_method(1, TX_SELECT) + publish + encode_method(1, TX_COMMIT))

    def commit_all(self, clients: Iterable[Client], names: Iterable[str]) -> None:
        """All of them in one turn, which ends."""
        for client, name in zip(clients, names, strict=True):
            self.commit(client, name)
        end_turn(self.node)

    def settle(self) -> None:
        """All that was ordered becomes stable; what is withheld stays. A tick, so that nothing lazy is left."""
        for _ in range(3):
            end_turn(self.node)
            self.node.durable_to(self.node.gate.appended)
        self.node.gather(flush=True)
        self.node.durable_to(self.node.gate.appended)
        end_turn(self.node)
        self.node.tick(self.broker.clock.now_ms, self.broker.clock.wall_ms)

    def bodies(self, queue: str = "q") -> list[str]:
        entries = self.node.state.topology.registry.vhost("/").queues[queue].entries
        return [entry.message.content().decode() for entry in entries.values()]


def outcome(client: Client) -> str:
    """The client's last answer: tx.commit-ok, or the text of a channel.close."""
    last = client.events()[-1]
    return str(last[2][1]) if len(last[2]) > 1 else "tx.commit-ok"
