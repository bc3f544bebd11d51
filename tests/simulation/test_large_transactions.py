"""From tx.commit on as much is said for any number of publishes and acknowledgements: they have gone to the backups before.

A broker gathers acknowledgements: fewer than ``FLUSH_ACCEPTS`` may be left, and go as one event with PREPARE. Both sizes here leave
that many, so they must agree to the byte.

Chance has no part in delays here: it would have two things that a broker says share a turn, or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import attrs
import pytest

from tests.simulator.scenario import PERSISTENT, Hand, Program, Scenario, SimClient, SimNode, calls, scenario
from tests.simulator.story import records_of
from understudy.broker.amqp.methods import BASIC_DELIVER
from understudy.broker.core.clients.transacting import FLUSH_ACCEPTS
from understudy.broker.log import record
from understudy.replicator import wire

REST = FLUSH_ACCEPTS - 1
"""So many acknowledgements at most are left for the end."""
SMALL, LARGE = REST + FLUSH_ACCEPTS, REST + 3 * FLUSH_ACCEPTS
ID_BYTES = 8
CLOSING_BYTES = 300
"""More than PREPARE and COMMIT take with all that is said about them, on one link in one direction."""
AT_A_TIME = 500
BATCH_FRAME = 9
"""Where the frame of a BATCH begins: behind kind and stable position."""
QUIET_MS = 1_000


class Even(Random):
    """Every delay is the shortest."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return start if stop is not None else 0


@attrs.define
class Talk:
    """The traffic of the links, and what comes of it.

    Attributes:
        messages: by sender, receiver and kind.
        sizes: bytes, likewise.
        records: of the batches, by sender, receiver and kind of record.
        answered_us: from tx.commit to its answer, in simulated time: so many rounds, since each step takes as long.
        logged: by broker, records by which its log has grown.
        journaled: by broker, frames and notes for its journal.
    """

    messages: Counter[tuple[str, str, int]] = attrs.field(factory=Counter)
    sizes: Counter[tuple[str, str, int]] = attrs.field(factory=Counter)
    records: Counter[tuple[str, str, str]] = attrs.field(factory=Counter)
    answered_us: int = 0
    logged: dict[str, int] = attrs.field(factory=dict)
    journaled: dict[str, int] = attrs.field(factory=dict)

    def hear(self, source: SimNode, target: SimNode, message: bytes) -> None:
        path, kind = (source.name, target.name), message[0]
        self.messages[(*path, kind)] += 1
        self.sizes[(*path, kind)] += len(message)
        if kind == wire.BATCH:
            for _, record_kind, _ in records_of(message[BATCH_FRAME:]):
                self.records[(*path, record.KIND_NAMES[record_kind])] += 1


def talk_of_commit(group: Scenario, hand: Hand) -> Talk:
    """Commit, and listen until everything has been said."""
    talk, network = Talk(), group.cluster.network
    before = network.on_sent

    def hear(source: SimNode, target: SimNode, message: bytes) -> None:
        if before is not None:
            before(source, target, message)
        talk.hear(source, target, message)

    ends = {node.name: (node.node.state.log.end, node.node.gate.appended) for node in group.nodes}
    network.on_sent = hear
    began_us = group.world.now_us
    hand.committed()
    talk.answered_us = group.world.now_us - began_us
    group.run_ms(QUIET_MS)
    network.on_sent = before
    for node in group.nodes:
        end, appended = ends[node.name]
        talk.logged[node.name] = node.node.state.log.end - end
        talk.journaled[node.name] = node.node.gate.appended - appended
    return talk


def publish(client: SimClient, queue: str, count: int) -> Program:
    for begin in range(0, count, AT_A_TIME):
        for number in range(begin, min(begin + AT_A_TIME, count)):
            client.publish("", queue, PERSISTENT, b"%d" % number)
        yield from calls.qos(client, 0)


def make(client: SimClient, count: int) -> Program:
    """So many publishes."""
    yield from publish(client, "out", count)


def take(client: SimClient, count: int, *, singly: bool = True) -> Program:
    """So many messages are delivered, and acknowledged one by one or all at once."""
    yield from calls.consume(client, "in", "taker")
    tag = 0
    for _ in range(count):
        while not client.deliveries:
            yield from client.wait(BASIC_DELIVER)
        tag = client.deliveries.popleft()[2][1]
        if singly:
            calls.ack(client, tag)
    if not singly:
        calls.ack(client, tag, multiple=True)
    yield from calls.cancel(client, "taker")


def take_at_once(client: SimClient, count: int) -> Program:
    yield from take(client, count, singly=False)


Step = Callable[[SimClient, int], Program]


def closing(steps: list[Step], count: int) -> Talk:
    """The traffic of committing a transaction that has done these steps with ``count`` messages each."""
    with scenario() as group:
        setup = group.hand()
        setup(calls.declare, "in")
        setup(calls.declare, "out")
        setup(publish, "in", count)
        hand = group.hand(transactional=True)
        for step in steps:
            hand(step, count)
        group.cluster.network.rng = hand.client.rng = Even(1)
        for node in group.nodes:
            node.rng = Even(1)
        group.run_ms(QUIET_MS)
        assert [group.events(node) for node in group.nodes] == [group.events(group.primary)] * 3
        talk = talk_of_commit(group, hand)
        left = 0 if steps != [make] else count
        made = count if make in steps else 0
        for node in group.nodes:
            assert (len(group.bodies(node, "in")), len(group.bodies(node, "out"))) == (left, made)
        return talk


@pytest.mark.parametrize(
    ("steps", "rest"),
    [
        pytest.param([make], 0, id="publishes"),
        pytest.param([take], REST, id="acknowledgements"),
        pytest.param([take_at_once], 0, id="one acknowledgement of all"),
        pytest.param([take, make], 0, id="acknowledgements, then publishes"),
        pytest.param([make, take], REST, id="publishes, then acknowledgements"),
    ],
)
def test_what_closes_a_transaction_is_as_much_for_any_number_of_events(steps: list[Step], rest: int) -> None:
    small, large = closing(steps, SMALL), closing(steps, LARGE)
    assert small == large
    records = ["prepare", "commit", *(["tx-dequeue"] if rest else [])]
    assert large.records == {("b1", backup, name): 1 for backup in ("b2", "b3") for name in records}
    for (source, target, _), size in large.sizes.items():
        assert size < CLOSING_BYTES + rest * ID_BYTES, (source, target)
