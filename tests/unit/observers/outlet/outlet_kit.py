"""A journal on a disk in memory, record by record, for tests of the outlet."""

from __future__ import annotations

from collections.abc import Iterable

from understudy.broker.core.life.recovery import encode_checkpoint
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, journal_gate, record
from understudy.broker.log.journal import Journal, JournalOptions
from understudy.broker.log.journal_recovery import recover
from understudy.broker.log.move_record import encode_move
from understudy.broker.log.position import Position
from understudy.broker.log.record import Prepare
from understudy.broker.log.segment import JournalIdentity
from understudy.broker.message import Message, MovedMessage
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.observers.outlet.reading.reader import NOTHING, OutletReader
from understudy.observers.outlet.reading.units import Outgoing, Unit
from understudy.replicator import group_notes
from understudy.testing.disk import MemoryStorage

SMALL = JournalOptions(segment_bytes=8192, alignment_bytes=512, index_interval_bytes=512, reserve_bytes=0, salt=7)
ORDERS, BILLS, PASSING = 1 << 40 | 1, 1 << 40 | 2, 1 << 40 | 3
EMPTY = b"\0\0\0\0"
FOUNDING = 0xAB


class Nothing:
    def on_batch(self, header: frame.BatchHeader, frame: bytes) -> None: ...

    def on_note(self, kind: int, payload: bytes, place: int = 0) -> None: ...


def message(body: bytes, key: str = "k") -> Message:
    return Message("x", key, b"\0\0", body, persistent=True)


def tx_id(number: int, epoch: int = 1) -> int:
    return epoch << 40 | number


class JournalWriter:
    """Writes what a broker would: batches that state how far the log is stable, and checkpoints where segments begin."""

    def __init__(self, storage: MemoryStorage, broker: str = "b1") -> None:
        self.state = BrokerState(0)
        self.storage = storage
        self.epoch = 1
        self.stable = 0
        self.stable_at_most = 1 << 40
        self.journal: Journal = recover(
            storage, JournalIdentity("g", broker), SMALL, Nothing(), checkpoint=self._checkpoint, wall_ms=lambda: 1
        ).journal
        self.buffers: dict[int, TxBuffer] = {}
        seen = self.epoch.to_bytes(4, "big") + FOUNDING.to_bytes(8, "big")
        self.note(group_notes.EPOCH_SEEN, seen)

    def _checkpoint(self) -> bytes:
        return frame.encode_note(journal_gate.CHECKPOINT, encode_checkpoint(self.state, b""))

    def note(self, kind: int, payload: bytes) -> None:
        self.journal.append(frame.encode_note(kind, payload))
        self.journal.sync_now()

    def cut(self, offset: int) -> None:
        self.state.taking.cut(offset)
        self.journal.append(frame.encode_cut(offset))
        self.journal.sync_now()

    def write(self, *raws: bytes, stable: int | None = None) -> int:
        """A batch; ``stable``: what it states, the end before it by default. Returns the offset of its last record."""
        log = self.state.log
        self.stable = min(max(self.stable, log.end), self.stable_at_most) if stable is None else stable
        data = frame.encode_batch(self.epoch, log.end + 1, len(raws), self.stable, list(raws))
        log.epoch = self.epoch
        self.state.taking.receive_batch(data)
        self.journal.append(data)
        log.apply_up_to(self.stable)
        self.journal.sync_now()
        return log.end

    def declare(self) -> None:
        """Two durable queues, and one that is not."""
        queues = ((ORDERS, "orders", record.DURABLE), (BILLS, "bills", record.DURABLE), (PASSING, "passing", 0))
        for queue_id, name, flags in queues:
            raw = record.encode_queue_declare(queue_id, "/", name, flags, EMPTY)
            self.write(raw if flags else record.encode_holes(1))

    def enqueue(self, body: bytes, *queues: int) -> int:
        """A message outside of transactions."""
        entry = 1 << 40 | self.state.log.end
        found = message(body)
        head = record.encode_enqueue([(queue, entry, 0) for queue in queues or (ORDERS,)], found, False)
        return self.write(head + found.properties + body)

    def move(
        self, queue_id: int, entry: int, new: int, body: bytes, *, has_body: bool = True, persistent: bool = True
    ) -> int:
        """A message leaves a queue and enters BILLS with the id ``new``."""
        dead = MovedMessage("x", "k", b"\0\0", body, persistent)
        head = encode_move(queue_id, entry, record.EXPIRED, [(BILLS, new, 0)], dead, has_body)
        return self.write(head + dead.properties + body * has_body)

    def in_tx(self, number: int, body: bytes, *queues: int) -> int:
        """A message in a transaction."""
        buffer = self._buffer(number)
        found = message(body)
        targets = [(queue, buffer.place(queue), 0) for queue in queues or (ORDERS,)]
        head = record.encode_tx_enqueue(tx_id(number), targets, found, False)
        buffer.add(self.state.log.end + 1, found, targets, head, False)
        return self.write(head + found.properties + body)

    def take_in_tx(self, number: int, *ids: int) -> int:
        """The transaction takes messages out of a queue."""
        raw = record.encode_tx_dequeue(tx_id(number), [(ORDERS, ids)])
        self._buffer(number).add(self.state.log.end + 1, None, (), raw, False)
        return self.write(raw)

    def _buffer(self, number: int) -> TxBuffer:
        return self.buffers.setdefault(number, TxBuffer(tx_id(number)))

    def prepare(self, number: int, csn: int, name: str = "", *, events: int | None = None) -> int:
        """``events``: how many it claims to have."""
        buffer = self._buffer(number)
        first_ids = {queue: (1 << 40 | csn << 8, count) for queue, count in buffer.enqueue_counts().items()}
        count = buffer.logged_events if events is None else events
        made = Prepare(
            tx_id(number), csn, name, 5_000, first_ids, count, buffer.digest, count, buffer.durable_digest
        )  # fmt: skip
        return self.write(record.encode_prepare(made))

    def commit(self, number: int, csn: int) -> int:
        return self.write(record.encode_commit(tx_id(number), csn, 5_000))

    def rollback(self, number: int) -> int:
        return self.write(record.encode_rollback(tx_id(number), 5_000, "", "the client's wish"))

    def transaction(self, number: int, csn: int, *bodies: bytes) -> int:
        """All of it at once; the offset of its PREPARE."""
        for body in bodies:
            self.in_tx(number, body)
        prepare = self.prepare(number, csn)
        self.commit(number, csn)
        return prepare

    def rest(self) -> None:
        """A batch that states all that is before it to be stable, and brings nothing."""
        self.write(record.encode_holes(1))


def units_of(
    storage: MemoryStorage, sent: Position = NOTHING, founding: str = "", *, accept_gaps: bool = False
) -> list[Unit]:
    reader = OutletReader(storage, sent, founding, accept_gaps=accept_gaps)
    return [unit for units in reader.units() for unit in units]


def bodies(units: Iterable[Unit]) -> list[list[bytes]]:
    return [[bytes(each.message.content()) for each in unit.messages] for unit in units]


def a_unit(offset: int, *sizes: int, queue: str = "q") -> Unit:
    """A transaction with messages of these sizes."""
    messages = tuple(Outgoing("/", queue, at + 1, message(b"x" * (size - 2))) for at, size in enumerate(sizes))
    return Unit(epoch=1, offset=offset, csn=offset, tx=f"ab/1.{offset}", messages=messages, first=offset)
