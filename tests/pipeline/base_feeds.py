"""Small feeds of simulated groups, from which `mutator` makes broken ones: what each of them says is true, and proved.

Each tells a story in which all kinds of events occur: transactions, plain messages with confirms, consumers, branches, changes of
topology; kills, a failover, a rejoin, and a broker that has lost its data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.scenario import MS, PERSISTENT, Hand, Lost, Program, Scenario, SimClient, calls, named
from tests.simulator.sim_feed import FeedFiles, SimFeed
from understudy.broker.amqp.methods import BASIC_DELIVER
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.transactions.xid import Xid
from understudy.pipeline.tallies.look import PARTED_BYTES

Events = list[dict[str, Any]]
Feed = dict[str, Events]
"""By broker: its events, as lines of JSON hold them."""
QUEUES = ("orders", "bills", "stock")
TRANSIENT = encode_properties(delivery_mode=1)


def base_feed(seed: int, *, power: bool, short: bool = False) -> Feed:
    """The story, with the chances of ``seed``.

    Args:
        seed: of the simulation.
        power: brokers lose power; else they are killed, and keep what they had written.
        short: it ends with the failover, and what a client does behind that.
    """
    with TemporaryDirectory() as folder, recorded(seed, Path(folder)) as group:
        _story(group, hard=power, short=short)
        group.finish()
        group.recorder.finish()
        return read_feed(Path(folder))


def read_feed(folder: Path) -> Feed:
    """The feed in files of JSON lines, a file a broker."""
    files = sorted(folder.glob("*.jsonl"))
    return {file.stem: [json.loads(line) for line in file.read_bytes().splitlines()] for file in files}


class _Recorded(Scenario):
    """A scenario whose feed is written from its first moment on."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, kept_bytes=1)
        self.recorder = SimFeed(self.cluster, FeedFiles(folder).take, anew=True)


@contextmanager
def recorded(seed: int, folder: Path) -> Iterator[_Recorded]:
    group = _Recorded(seed, folder)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start_empty()
        yield group


# -- the story ----------------------------------------------------------------------------------------------------------


def _story(group: _Recorded, *, hard: bool, short: bool) -> None:
    admin = group.hand()
    _topology(admin)
    plain = group.hand()
    plain(calls.confirm_select)
    _publish(plain, "orders", 3)
    _publish(plain, "bills", 2)
    _dead_letter(plain)
    if not short:
        plain(confirmed, 2, exchange="all")
        plain(confirmed, 1, queue="stock", body=bytes(PARTED_BYTES))
    _consume(group, "orders", 2)
    _transactions(group, "first", 3)
    _branches(group)
    group.ready()
    _a_kill_amid_work(group, hard=hard)
    _transactions(group, "second", 2)
    again = group.hand()
    again(calls.confirm_select)
    _publish(again, "stock", 2)
    if short:
        return
    _consume(group, "stock", 2)
    _end_of_topology(group)
    group.caught_up_from_nothing(group.backups[0])
    _transactions(group, "third", 2)
    last = group.hand()
    last(calls.confirm_select)
    _publish(last, "bills", 2)
    _consume(group, "bills", 2)


def _topology(admin: Hand) -> None:
    for queue in QUEUES:
        admin(calls.declare, queue)
    admin(calls.declare_exchange, "all", "fanout")
    admin(calls.declare_exchange, "short-lived", "topic")
    for queue in ("orders", "bills"):
        admin(calls.bind, queue, "all", queue)
    admin(calls.bind, "stock", "short-lived", "a.#")
    admin(calls.bind_exchange, "all", "short-lived", "b.#")


def _end_of_topology(group: _Recorded) -> None:
    admin = group.hand()
    admin(calls.unbind, "stock", "short-lived", "a.#")
    admin(calls.unbind_exchange, "all", "short-lived", "b.#")
    admin(calls.delete_exchange, "short-lived")
    admin(calls.declare, "gone-soon")
    admin.publish("gone-soon", b"1", b"2")
    admin(calls.purge, "gone-soon")
    admin(calls.delete, "gone-soon")
    admin.go()


def _publish(hand: Hand, queue: str, count: int) -> None:
    """In runs of one, two, ...: each run has a confirm of its own."""
    for messages in range(1, count + 1):
        hand(confirmed, messages, queue=queue)


def confirmed(client: SimClient, messages: int, queue: str = "", exchange: str = "", body: bytes = b"body") -> Program:
    """Publish so many, and wait for all confirms."""
    told: list[int] = []
    client.on_confirm = lambda tag, multiple, good: told.append(tag)
    first = getattr(client, "published", 0)
    client.published = first + messages  # type: ignore[attr-defined]
    for _ in range(messages):
        client.publish(exchange, queue, PERSISTENT, body)
    while max(told, default=0) < first + messages:
        yield from client.sleep(5 * MS)


def _dead_letter(hand: Hand) -> None:
    """A message is rejected, and moves to another queue."""
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "stock"}
    hand(calls.declare, "judged", arguments=dead)
    hand(confirmed, 1, queue="judged")
    event = hand(calls.get, "judged")
    calls.reject(hand.client, event[2][0])
    hand(calls.qos, 0)


def _consume(group: _Recorded, queue: str, count: int) -> None:
    """A consumer takes so many, one of them at the second time."""
    hand = group.hand()
    hand(_taken, queue, count)
    hand.go()


def _taken(client: SimClient, queue: str, count: int) -> Program:
    yield from calls.qos(client, 1)
    yield from calls.consume(client, queue, "consumer")
    returned = False
    while count:
        while not client.deliveries:
            yield from client.wait(BASIC_DELIVER)
        tag = client.deliveries.popleft()[2][1]
        if not returned:
            calls.nack(client, tag)
            returned = True
            continue
        calls.ack(client, tag)
        count -= 1
    yield from calls.cancel(client, "consumer")
    yield from calls.declare(client, queue, passive=True)


def _transactions(group: _Recorded, name: str, count: int) -> None:
    """Each brings two messages to a queue and one to another, and takes one; the last one is rolled back."""
    hand = group.hand(transactional=True)
    for number in range(count):
        called = f"{name}-{number}"
        hand.publish("orders", b"a", b"bb", properties=named(called))
        hand.publish("bills", b"ccc", properties=named(called))
        hand.take("orders")
        if number < count - 1:
            hand.committed(called)
            assert group.fate(called) == "committed"
    hand(calls.rollback)
    hand.go()


def _branches(group: _Recorded) -> None:
    """One is committed, one rolled back, and one stays in doubt until its primary is replaced."""
    for number, verb in enumerate((calls.dtx_commit, calls.dtx_rollback, None)):
        xid = Xid(7, b"global", b"b%d" % number)
        hand = group.hand()
        hand(calls.dtx_select)
        hand(calls.dtx_start, xid)
        hand.take("bills")
        hand.publish("stock", b"of a branch")
        hand(calls.dtx_end, xid)
        hand(calls.dtx_prepare, xid)
        if verb is not None:
            hand(verb, xid)
        hand.go()
    asks = group.hand()
    asks(calls.dtx_recover)
    asks.go()


def _a_kill_amid_work(group: _Recorded, *, hard: bool) -> None:
    """The primary dies while a transaction is open, another is being committed, and a consumer holds messages."""
    open_one, commits = group.hand(transactional=True), group.hand(transactional=True)
    open_one.publish("orders", b"never")
    commits.publish("orders", b"perhaps", properties=named("in-flight"))
    holder = group.hand()
    holder(calls.qos, 2)
    holder(calls.consume, "orders", "holder")
    commits.commit("in-flight")
    group.replace_primary(group.backups[0], hard=hard)
    group.heal()
    group.ready()
    for hand in (open_one, commits, holder):
        with suppress(Lost):
            hand.go()
    group.fate("in-flight")
    assert group.fate("never-heard-of") == "rolled back"
    manager = group.hand()
    manager(calls.dtx_recover)
    manager(calls.dtx_commit, Xid(7, b"global", b"b2"))
    manager.go()
