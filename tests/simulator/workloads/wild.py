"""Wild: says anything at any time, to queues of every kind that others use too, in transactions under names that others use too.

It keeps no books: what it is told is looked at by the checkers, and so is what it does to the brokers. Some of what it says is
wrong and ends its channel. A run has several of them; nobody draws them, they have to be asked for (`knobs.ASKED_WORKLOADS`).
"""

from __future__ import annotations

from typing import Any

from tests.simulator.sim_client import FRAME_MAX, Closed, Lost, Program, SimClient
from tests.simulator.workloads.run import Run
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CANCEL,
    BASIC_CONSUME,
    BASIC_GET,
    BASIC_NACK,
    BASIC_QOS,
    BASIC_RECOVER,
    BASIC_REJECT,
    CHANNEL_CLOSE,
    CHANNEL_FLOW,
    CHANNEL_OPEN,
    CONFIRM_SELECT,
    CONNECTION_CLOSE,
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    EXCHANGE_DELETE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    QUEUE_DELETE,
    QUEUE_PURGE,
    QUEUE_UNBIND,
    TX_COMMIT,
    TX_COMMIT_OK,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties

Kind = tuple[bool, bool, bool, dict[str, Any]]
QUEUES: dict[str, Kind] = {  # durable, exclusive, auto-delete, arguments
    "wild-durable": (True, False, False, {}),
    "wild-other": (True, False, False, {}),
    "wild-transient": (False, False, False, {}),
    "wild-ttl": (True, False, False, {"x-message-ttl": 300}),
    "wild-expires": (True, False, False, {"x-expires": 800}),
    "wild-auto": (False, False, True, {}),
    "wild-configuration": (True, False, False, {"x-ha-replicate": "configuration"}),
    "wild-none": (False, False, False, {"x-ha-replicate": "none"}),
}
OWN_QUEUES: dict[str, Kind] = {"mine": (False, True, False, {}), "mine-auto": (False, True, True, {})}
EXCHANGES = {
    "wild-fanout": ("fanout", True, False),
    "wild-topic": ("topic", True, False),
    "wild-auto": ("direct", False, True),
}
KEYS = ("a.b", "a.*", "")
COMMIT = encode_method(1, TX_COMMIT)


class Wild:
    """One of them. ``names``: of transactions, shared by all of a run, oldest first."""

    def __init__(self, client: SimClient, run: Run, names: list[str]) -> None:
        self.client = client
        self.run = run
        self._names = names
        self._own = {f"{client.name}-{name}": kind for name, kind in OWN_QUEUES.items()}
        self._queues = QUEUES | self._own
        self._mode = 0
        self._name = ""
        self._seen = 0
        self._held: list[int] = []
        self._tags: list[str] = []
        verbs = (
            (30, self._publish),
            (5, self._select),
            (10, self._end_transaction),
            (10, self._get),
            (5, self._consume),
            (3, self._cancel),
            (18, self._settle),
            (2, self._limit),
            (8, self._declare),
            (3, self._bind),
            (2, self._empty),
            (2, self._ask),
            (1, self._close),
        )
        self._verbs = [verb for _, verb in verbs]
        self._weights = [weight for weight, _ in verbs]

    def program(self) -> Program:
        client, rng = self.client, self.client.rng
        while not self.run.enough():
            try:
                yield from self._come_in()
                while client.connected() and not self.run.enough():
                    yield from self._speak()
                    if rng.random() < 0.02:
                        client.disconnect("no reason")
                    yield from client.sleep(rng.choice((0, 100, 1_000, 1_000, 5_000, 30_000)))
            except (Lost, Closed) as end:
                self.run.did("wild clients closed", isinstance(end, Closed))
                client.disconnect("again")

    def _come_in(self) -> Program:
        client = self.client
        yield from client.connect()
        self._forget()
        for name in self._queues:
            if client.rng.random() < 0.9:
                yield from client.call(self._declaration(name), QUEUE_DECLARE_OK)
        for name, (kind, durable, auto_delete) in EXCHANGES.items():
            frames = encode_method(1, EXCHANGE_DECLARE, name, kind, False, durable, auto_delete, False, False, {})
            yield from client.call(frames, EXCHANGE_DECLARE_OK)

    def _forget(self) -> None:
        """A new channel."""
        self._mode = self._seen = self.client.newest_tag = 0
        self._name = ""
        self._held.clear()
        self._tags.clear()

    def _speak(self) -> Program:
        """One or a few things at once; behind a commit seldom."""
        client, rng = self.client, self.client.rng
        client.deliveries.clear()
        self.run.did("wild messages got", max(0, client.newest_tag - self._seen))
        self._held += range(self._seen + 1, client.newest_tag + 1)
        self._seen = max(self._seen, client.newest_tag)
        frames = b""
        with client.corked():
            for _ in range(rng.choice((1, 1, 2, 4))):
                (verb,) = rng.choices(self._verbs, self._weights)
                frames = verb()
                client.write(frames)
                if frames == COMMIT:
                    break
        if frames == COMMIT and rng.random() < 0.9:
            answer = yield from client.doze(400, TX_COMMIT_OK)
            self.run.did("wild transactions", answer is not None)

    # -- what it says -------------------------------------------------------------------------------------------------

    def _queue(self) -> str:
        return self.client.rng.choice(list(QUEUES) * 4 + list(self._own) * 2)

    def _declaration(self, name: str) -> bytes:
        durable, exclusive, auto_delete, arguments = self._queues[name]
        return encode_method(1, QUEUE_DECLARE, name, False, durable, exclusive, auto_delete, False, arguments)

    def _publish(self) -> bytes:
        rng = self.client.rng
        fields: dict[str, Any] = {"delivery_mode": rng.choice((1, 2))}
        if rng.random() < 0.1:
            fields["expiration"] = rng.choice(("0", "20", "200", "100000"))
        if self._mode == TX_SELECT and rng.random() < 0.4:
            fields["headers"] = {"x-understudy-tx": self._transaction_name()}
        exchange, key = rng.choice(
            (*(("", self._queue()) for _ in range(5)), *((name, "a.b") for name in EXCHANGES), ("", "-"))
        )
        body = b"z" * rng.choice((0, 1, 10, 500, 20_000))
        mandatory, immediate = rng.random() < 0.1, rng.random() < 0.05
        return publish_frames(1, exchange, key, encode_properties(**fields), body, FRAME_MAX, mandatory, immediate)

    def _transaction_name(self) -> str:
        """One for a transaction, as a rule; now and then one that somebody else has, or had, just now."""
        rng = self.client.rng
        if not self._name or rng.random() < 0.02:
            if not self._names or rng.random() < 0.5:
                self._names.append(f"wild-{len(self._names)}")
            self._name = rng.choice(self._names[-3:])
        return self._name

    def _select(self) -> bytes:
        if self._mode:
            return b""
        self._mode = self.client.rng.choice((TX_SELECT, TX_SELECT, CONFIRM_SELECT))
        return encode_method(1, TX_SELECT) if self._mode == TX_SELECT else encode_method(1, CONFIRM_SELECT, False)

    def _end_transaction(self) -> bytes:
        if self._mode != TX_SELECT:
            return b""
        self._name = ""
        return COMMIT if self.client.rng.random() < 0.7 else encode_method(1, TX_ROLLBACK)

    def _get(self) -> bytes:
        return encode_method(1, BASIC_GET, self._queue(), self.client.rng.random() < 0.3)

    def _consume(self) -> bytes:
        rng = self.client.rng
        self._tags.append(f"tag-{rng.randrange(1 << 30)}")
        no_ack, exclusive = rng.random() < 0.3, rng.random() < 0.1
        return encode_method(1, BASIC_CONSUME, self._queue(), self._tags[-1], False, no_ack, exclusive, False, {})

    def _cancel(self) -> bytes:
        if not self._tags:
            return b""
        return encode_method(1, BASIC_CANCEL, self._tags.pop(self.client.rng.randrange(len(self._tags))), False)

    def _settle(self) -> bytes:
        rng = self.client.rng
        if not self._held:
            return b""
        tag, multiple = rng.choice(self._held), rng.random() < 0.3
        if rng.random() < 0.98:
            self._held = [each for each in self._held if (each > tag if multiple else each != tag)]
        choice = rng.random()
        if choice < 0.6:
            return encode_method(1, BASIC_ACK, tag, multiple)
        if choice < 0.9:
            return encode_method(1, BASIC_NACK, tag, multiple, rng.random() < 0.6)
        if choice < 0.97 and not multiple:
            return encode_method(1, BASIC_REJECT, tag, rng.random() < 0.5)
        self._held.clear()
        return encode_method(1, BASIC_RECOVER, True)

    def _limit(self) -> bytes:
        rng = self.client.rng
        if rng.random() < 0.5:
            return encode_method(1, BASIC_QOS, 0, rng.choice((0, 1, 3)), rng.random() < 0.5)
        return encode_method(1, CHANNEL_FLOW, rng.random() < 0.7)

    def _declare(self) -> bytes:
        return self._declaration(self._queue())

    def _bind(self) -> bytes:
        rng = self.client.rng
        name, (kind, durable, auto_delete) = rng.choice(list(EXCHANGES.items()))
        if rng.random() < 0.2:
            return encode_method(1, EXCHANGE_DELETE, name, False, False)
        declaration = encode_method(1, EXCHANGE_DECLARE, name, kind, False, durable, auto_delete, False, False, {})
        if rng.random() < 0.3:
            return declaration + encode_method(1, QUEUE_UNBIND, self._queue(), name, rng.choice(KEYS), {})
        return declaration + encode_method(1, QUEUE_BIND, self._queue(), name, rng.choice(KEYS), False, {})

    def _empty(self) -> bytes:
        rng = self.client.rng
        if rng.random() < 0.5:
            return encode_method(1, QUEUE_PURGE, self._queue(), rng.random() < 0.3)
        return encode_method(1, QUEUE_DELETE, self._queue(), rng.random() < 0.3, rng.random() < 0.3, rng.random() < 0.3)

    def _ask(self) -> bytes:
        """The outcome of what somebody has done, or will do next."""
        rng = self.client.rng
        question = rng.choice(("id", *(f"outcome {name}" for name in (*self._names[-3:], f"wild-{len(self._names)}"))))
        properties = encode_properties(reply_to=self._queue())
        return publish_frames(1, "understudy.tx", "", properties, question.encode(), FRAME_MAX)

    def _close(self) -> bytes:
        if self.client.rng.random() < 0.3:
            return encode_method(0, CONNECTION_CLOSE, 200, "", 0, 0)
        self._forget()
        return encode_method(1, CHANNEL_CLOSE, 200, "", 0, 0) + encode_method(1, CHANNEL_OPEN)
