"""The primary's content is on every backup: step by step, in the midst of a stream, and for a backup that comes later."""

from __future__ import annotations

import pytest

from tests.simulator.scenario import MS, PERSISTENT, Program, SimClient, calls, scenario

SEEDS = [1, 2, 3]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_step_is_mirrored(seed: int) -> None:
    """replication: declares, binds, publishes, takes, unbinds, deletes; before and after a backup comes, and after a failover."""
    with scenario(seed, kept_bytes=1) as group:
        late = group.backups[1]
        group.crash(late)
        late.wipe()
        group.expelled(late)
        hand = group.hand()

        def steps(prefix: str) -> None:
            queue, exchange = f"{prefix}.q", f"{prefix}.x"
            hand(calls.declare, queue)
            hand(calls.declare_exchange, exchange, "topic")
            hand(calls.bind, queue, exchange, "k.#")
            left: list[bytes] = []
            for number in range(4):
                left.append(b"%d" % number)
                hand.publish("k.a", left[-1], exchange=exchange)
                group.everywhere(queue, *left)
            while len(left) > 1:
                hand.take(queue)
                left.pop(0)
                group.everywhere(queue, *left)
            hand(calls.unbind, queue, exchange, "k.#")
            hand.publish("k.a", b"nowhere", exchange=exchange)
            group.everywhere(queue, b"3")
            hand(calls.declare, f"{prefix}.deleted")
            hand(calls.delete, f"{prefix}.deleted")
            hand(calls.delete_exchange, exchange)

        steps("before")
        group.move_the_kept_log_on()
        late.start()
        group.ready()
        group.everywhere("before.q", b"3")
        steps("after")
        group.replace_primary(late)
        hand = group.hand()
        steps("failover")
        for node in group.nodes:
            if node.up:
                names = {queue.name for queue in node.node.state.topology.registry.queues()}
                assert {"before.q", "after.q", "failover.q"} <= names
                assert not any(name.endswith("deleted") for name in names)


@pytest.mark.parametrize("seed", SEEDS)
def test_backups_that_join_in_the_midst_of_a_stream(seed: int) -> None:
    """sync: two of them, one after the other; each ends with all of it, in order."""

    def stream(client: SimClient) -> Program:
        for number in range(60):
            client.publish("", "q", PERSISTENT, b"%d" % number)
            yield from client.sleep(20 * MS)

    with scenario(seed, kept_bytes=1, min_insync=1, pieces_in_flight=1, piece_bytes=300) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        first, second = group.backups
        for node in (first, second):
            group.crash(node)
            node.wipe()
            group.expelled(node)
        order = hand.begin(stream)
        group.run_ms(300)
        first.start()
        group.run_ms(300)
        second.start()
        group.until("sent", lambda: order.over)
        group.ready()
        group.everywhere("q", *[b"%d" % number for number in range(60)])
        group.replace_primary(second)
        after = group.hand()
        assert after.take("q", 60) == [b"%d" % number for number in range(60)]


@pytest.mark.parametrize("size", [0, 10])
def test_a_thousand_sent_and_990_received(size: int) -> None:
    """send_receive; with ``size``, in transactions of so many on both sides: tx_send_receive."""

    def send(client: SimClient) -> Program:
        for number in range(1, 1_001):
            client.publish("", "q", PERSISTENT, b"%d" % number)
            if size and number % size == 0:
                yield from calls.commit(client)
        yield from calls.qos(client, 0)

    def receive(client: SimClient) -> Program:
        yield from calls.qos(client, 50)
        yield from calls.consume(client, "q", "c")
        for number in range(1, 991):
            while not client.deliveries:
                yield from client.sleep(5 * MS)
            event = client.deliveries.popleft()
            assert event[4] == b"%d" % number
            calls.ack(client, event[2][1])
            if size and number % size == 0:
                yield from calls.commit(client)
        yield from calls.cancel(client, "c")

    with scenario() as group:
        sender = group.hand(transactional=size > 0)
        receiver = group.hand(transactional=size > 0)
        sender(calls.declare, "q")
        orders = [sender.begin(send), receiver.begin(receive)]
        group.until("done", lambda: all(order.over for order in orders), 120_000)
        assert [order.error for order in orders] == [None, None]
        receiver.go()
        group.everywhere("q", *[b"%d" % number for number in range(991, 1_001)])
