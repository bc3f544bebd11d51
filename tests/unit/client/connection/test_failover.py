"""Decisions of the client's connection against a driver that is a script: no wire, no clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import attrs
import pytest

from understudy.client.connection.core.addresses import named
from understudy.client.connection.core.backoff import Backoff
from understudy.client.connection.core.consumption import Consumption
from understudy.client.connection.core.failover import Failover
from understudy.client.connection.core.messages import Message, Outgoing
from understudy.client.connection.core.numbers import ChannelNumbers, NoChannelError
from understudy.client.connection.core.outcome import HEADER, Outcome
from understudy.client.connection.core.topology import (
    AnyBinding,
    Binding,
    Entity,
    Exchange,
    ExchangeBinding,
    Queue,
    Topology,
)
from understudy.client.connection.core.transaction import Transaction
from understudy.client.connection.core.transactions import Transactions
from understudy.client.connection.errors import (
    ArgumentError,
    ClientError,
    LoginRefusedError,
    LostError,
    NoBrokerError,
    RefusedError,
    TransactionAborted,
    TransactionUnknown,
)
from understudy.client.connection.threads import run

T = TypeVar("T")


class OneLock:
    def __init__(self) -> None:
        self.held = False

    def acquire(self) -> None:
        assert not self.held, "a procedure waits for itself"
        self.held = True

    def release(self) -> None:
        self.held = False


class ScriptedChannel:
    """Notes what is asked; `fails` maps a request to the error that it raises, once."""

    def __init__(self, link: ScriptedLink) -> None:
        self.link = link
        self.lock = OneLock()
        self.returned: list[str] = []
        self.lives = True
        self.arriving: list[Message | None] = []

    def _do(self, what: str) -> None:
        self.link.driver.done.append(what)
        driver = self.link.driver
        error = driver.fails.get(what) if driver.keeps_failing else driver.fails.pop(what, None)
        if error is not None:
            self.lives = False
            raise error

    def select(self) -> None:
        self._do("select")

    def consume(self, queue: str, prefetch: int) -> None:
        self._do(f"consume {queue}")

    def next(self, timeout_s: float | None) -> Message | None:
        self._do("next")
        if self.arriving:
            return self.arriving.pop(0)
        answer = self.link.driver.answers.pop(0)
        return message_on(self, answer.encode(), self.link.driver.last_question)

    def declare(self, entity: Entity) -> None:
        self._do(f"declare {getattr(entity, 'name', 'binding')}")

    def count(self, queue: str) -> int:
        self._do(f"count {queue}")
        return 3

    def unbind(self, binding: AnyBinding) -> None:
        self._do("unbind")

    def delete_queue(self, name: str) -> None:
        self._do(f"delete {name}")

    def delete_exchange(self, name: str) -> None:
        self._do(f"delete {name}")

    def publish(self, message: Outgoing) -> None:
        self.link.driver.published.append(message)
        self.link.driver.last_question = message.correlation_id
        self._do(f"publish {message.routing_key}")

    def acknowledge(self, tag: int) -> None:
        self._do(f"acknowledge {tag}")

    def reject(self, tag: int, *, requeue: bool) -> None:
        self._do(f"reject {tag}")

    def commit(self) -> None:
        self._do("commit")

    def close(self) -> None:
        self.lives = False


class ScriptedLink:
    def __init__(self, driver: ScriptedDriver) -> None:
        self.driver = driver
        self.capabilities = frozenset({"understudy.outcomes"})
        self.lives = True

    def channel(self, *, spare: bool = False) -> ScriptedChannel:
        mine = [each for each in self.driver.channels if each.link is self and each.lives]
        if len(mine) >= self.driver.most_channels and not spare:
            raise NoChannelError("all channels are taken")
        self.driver.channels.append(ScriptedChannel(self))
        return self.driver.channels[-1]

    def close(self) -> None:
        self.lives = False


class ScriptedDriver:
    """Opens what ``opens`` says: None is a link, an error is raised."""

    def __init__(self, *opens: ClientError | None, urls: tuple[str, ...] = ("amqp://b1/", "amqp://b2/")) -> None:
        self.urls = urls
        self.opens = list(opens)
        self.tried: list[str] = []
        self.pauses: list[float] = []
        self.done: list[str] = []
        self.keeps_failing = False
        self.fails: dict[str, ClientError] = {}
        self.published: list[Outgoing] = []
        self.answers: list[str] = []
        self.last_question = ""
        self.links: list[ScriptedLink] = []
        self.channels: list[ScriptedChannel] = []
        self.most_channels = 9
        self._tokens = itertools.count(1)

    def find(self) -> list[str]:
        return list(self.urls)

    def open(self, url: str) -> ScriptedLink:
        self.tried.append(named(url))
        if self.opens and (error := self.opens.pop(0)) is not None:
            raise error
        self.links.append(ScriptedLink(self))
        return self.links[-1]

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def lock(self) -> OneLock:
        return OneLock()

    def now_s(self) -> float:
        return sum(self.pauses)

    def chance(self) -> float:
        return 1.0

    def token(self) -> str:
        return f"t{next(self._tokens)}"

    def warn(self, text: str) -> None:
        pass


def message_on(channel: ScriptedChannel, body: bytes, correlation_id: str = "", tag: int = 1) -> Message:
    return Message(
        body=body, exchange="", routing_key="", headers={}, message_id="", correlation_id=correlation_id, reply_to="",
        content_type="", redelivered=False, tag=tag, channel=channel,
    )  # fmt: skip


def transactions_over(driver: ScriptedDriver) -> Transactions:
    failover = Failover(driver)
    transactions = Transactions(failover, lambda name: run(transactions.outcome(name)))
    return transactions


def throw_or_send(steps: Generator[Callable[[], Any], Any, Any], call: Callable[[], Any]) -> Callable[[], Any]:
    """Make one call of a procedure; the next one."""
    try:
        result = call()
    except ClientError as error:
        return steps.throw(error)
    return steps.send(result)


def run_on(steps: Generator[Callable[[], Any], Any, Any], call: Callable[[], Any]) -> None:
    """Carry a procedure out from a call on; it must end with an error."""
    while True:
        call = throw_or_send(steps, call)


def published(*keys: str, name: str | None = None) -> Transaction:
    transaction = Transaction(name)
    for key in keys:
        transaction.publish(b"", key)
    return transaction


def settling(message: Message) -> Transaction:
    transaction = Transaction(None)
    transaction.acknowledge(message)
    return transaction


AWAY = LostError("away")


def test_a_round_tries_each_address_and_a_pause_grows_between_rounds() -> None:
    driver = ScriptedDriver(AWAY, AWAY, AWAY, AWAY, AWAY, None)
    run(Failover(driver).connected())
    assert driver.tried == ["b1", "b2"] * 3
    assert driver.pauses == [0.1, 0.2]


def test_a_lost_link_is_opened_at_the_next_address() -> None:
    driver = ScriptedDriver()
    failover = Failover(driver)
    run(failover.connected())
    assert run(failover.connected()) is driver.links[0]
    driver.links[0].lives = False
    assert run(failover.connected()) is driver.links[1]
    assert driver.tried == ["b1", "b2"]


def test_a_call_gives_up_and_names_the_reasons() -> None:
    driver = ScriptedDriver(*[AWAY] * 20)
    with pytest.raises(NoBrokerError, match=r"no broker within 1 s: b1: away; b2: away"):
        run(Failover(driver, give_up_s=1).connected())
    driver = ScriptedDriver(LoginRefusedError("no"))
    with pytest.raises(LoginRefusedError):
        run(Failover(driver).connected())


def test_calls_that_wait_for_one_another_give_up_together() -> None:
    driver = ScriptedDriver(*[AWAY] * 40)
    failover = Failover(driver, give_up_s=1)
    waiting = failover.connected()
    acquire = next(waiting)
    with pytest.raises(NoBrokerError):
        run(failover.connected())
    tried = len(driver.tried)
    with pytest.raises(NoBrokerError, match=r"no broker within 1 s: b1: away; b2: away"):
        run_on(waiting, acquire)
    assert len(driver.tried) == tried
    with pytest.raises(NoBrokerError):  # a call of its own tries again
        run(failover.connected())
    assert len(driver.tried) > tried


def test_a_closed_connection_is_not_opened_again() -> None:
    failover = Failover(ScriptedDriver())
    run(failover.close())
    with pytest.raises(NoBrokerError, match="closed by the program"):
        run(failover.connected())


def test_a_close_ends_a_wait_for_a_broker() -> None:
    driver = ScriptedDriver(*[AWAY] * 20)
    failover = Failover(driver, give_up_s=None)
    steps = failover.connected()
    call = next(steps)
    while driver.tried != ["b1", "b2", "b1"]:
        call = throw_or_send(steps, call)
    failover.closed = True
    with pytest.raises(NoBrokerError, match="closed by the program"):
        run_on(steps, call)


def test_a_broker_that_gives_links_and_no_channels_is_given_up() -> None:
    driver = ScriptedDriver()
    failover = Failover(driver, give_up_s=1)
    driver.fails |= dict.fromkeys(["count q"], AWAY)
    driver.keeps_failing = True
    with pytest.raises(NoBrokerError, match="no broker within 1 s: away"):
        run(failover.count("q"))


def test_what_was_declared_is_declared_again_in_an_order_that_works() -> None:
    driver = ScriptedDriver()
    failover = Failover(driver)
    for entity in (
        Queue(name="q"), Exchange(name="x"), Binding(queue="q", exchange="x"), Binding(queue="q", exchange="y"),
        Queue(name="gone"), Binding(queue="gone", exchange="x"),
    ):  # fmt: skip
        run(failover.declare(entity))
    run(failover.delete_queue("gone"))
    run(failover.unbind(Binding(queue="q", exchange="y")))
    driver.done.clear()
    driver.links[-1].lives = False
    run(failover.connected())
    assert driver.done == ["declare x", "declare q", "declare binding"]


def test_a_link_lost_behind_the_answer_of_a_declaration_declares_it_again() -> None:
    driver = ScriptedDriver()
    failover = Failover(driver)
    steps = failover.declare(Queue(name="q"))
    call = next(steps)
    while driver.done != ["declare q"]:
        call = throw_or_send(steps, call)
    driver.links[-1].lives = False
    run(failover.connected())
    assert driver.done == ["declare q"] * 2


def test_a_queue_that_the_old_connection_still_locks_is_awaited() -> None:
    driver = ScriptedDriver()
    failover = Failover(driver)
    run(failover.declare(Queue(name="mine", exclusive=True)))
    driver.links[-1].lives = False
    driver.fails["declare mine"] = RefusedError(405, "RESOURCE_LOCKED")
    run(failover.connected())
    assert driver.tried == ["b1", "b2", "b1"]
    driver.links[-1].lives = False
    driver.fails["declare mine"] = RefusedError(406, "other arguments")
    with pytest.raises(RefusedError, match="declared again"):
        run(failover.connected())


def test_a_request_that_may_be_repeated_is_repeated_on_another_link() -> None:
    driver = ScriptedDriver()
    failover = Failover(driver)
    driver.fails["count q"] = AWAY
    assert run(failover.count("q")) == 3
    assert driver.done == ["count q", "count q"]
    driver.fails["count q"] = RefusedError(404, "no queue")
    with pytest.raises(RefusedError):
        run(failover.count("q"))


@pytest.mark.parametrize(
    ("failing", "error", "wanted"),
    [
        ("publish b", AWAY, TransactionAborted),
        ("publish b", RefusedError(404, "no exchange"), TransactionAborted),
        ("commit", RefusedError(406, "refused"), TransactionAborted),
        ("commit", AWAY, TransactionUnknown),
    ],
)
def test_a_failed_transaction_is_sent_once_and_told(
    failing: str, error: ClientError, wanted: type[ClientError]
) -> None:
    driver = ScriptedDriver()
    driver.fails[failing] = error
    transactions = transactions_over(driver)
    with pytest.raises(wanted):
        run(transactions.commit(published("a", "b")))
    assert driver.done.count("publish a") == 1
    assert driver.done.count("commit") == (failing == "commit")


def test_an_unknown_outcome_is_asked_for_until_it_is_decided() -> None:
    driver = ScriptedDriver()
    driver.fails["commit"] = AWAY
    transactions = transactions_over(driver)
    with pytest.raises(TransactionUnknown) as unknown:
        run(transactions.commit(published("a", name="mine")))
    assert driver.published[0].headers == {HEADER: "mine"}
    driver.answers = ["pending", "committed"]
    assert unknown.value.outcome() is Outcome.COMMITTED
    questions = [each for each in driver.published if each.exchange == "understudy.tx"]
    assert [each.body for each in questions] == [b"outcome mine"] * 2
    driver.answers = ["error: what?"]
    with pytest.raises(RefusedError, match="answers 'error: what\\?'"):
        unknown.value.outcome()
    driver.links[-1].capabilities = frozenset()
    with pytest.raises(RefusedError, match="keeps no outcomes"):
        unknown.value.outcome()


def test_a_transaction_that_only_acknowledges_goes_by_the_brokers_id() -> None:
    driver = ScriptedDriver()
    transactions = transactions_over(driver)
    channel = ScriptedChannel(driver.open("amqp://b1/"))
    transaction = Transaction(None)
    transaction.acknowledge(message_on(channel, b""))
    driver.answers = ["3.14"]
    driver.fails["commit"] = AWAY
    with pytest.raises(TransactionUnknown) as unknown:
        run(transactions.commit(transaction))
    assert unknown.value.name == "3.14"
    with pytest.raises(TransactionAborted, match="delivered again"):
        run(transactions.acknowledge(message_on(channel, b"")))
    named = Transaction("mine")
    named.acknowledge(message_on(channel, b""))
    with pytest.raises(ArgumentError, match="publishes nothing"):
        run(transactions.commit(named))


def test_a_transaction_waits_while_all_channels_are_taken() -> None:
    driver = ScriptedDriver()
    driver.most_channels = 1
    failover = Failover(driver, give_up_s=1)
    transactions = Transactions(failover, lambda name: name)
    consumption = Consumption(failover, "q", 1)
    run(transactions.commit(published("a")))  # leaves an idle channel
    driver.answers = ["hello", "3.14"]
    message = run(consumption.next())
    assert message is not None
    steps = transactions.commit(published("b"))
    call = next(steps)
    while len(driver.pauses) < 2:
        call = throw_or_send(steps, call)
    run(transactions.commit(settling(message)))  # its question for an id has a channel
    driver.channels[-1].lives = False  # of the answer
    with pytest.raises(NoBrokerError, match="all channels are taken"):
        run(transactions.commit(published("c")))
    driver.pauses.clear()
    run(consumption.close())
    with pytest.raises(StopIteration):
        run_on(steps, call)
    assert driver.done[-2:] == ["publish b", "commit"]
    assert len(driver.links) == 1


def test_numbers_of_channels_stay_within_the_brokers_bound() -> None:
    numbers = ChannelNumbers(4)
    assert [numbers.free() for _ in range(4)] == [1, 2, 3, 1]
    assert numbers.free({2}, {4}) == 3
    assert numbers.free({1, 2}, set()) == 3
    assert numbers.free({1, 4}, {2}) == 3
    for taken in [({1, 2, 3},), ({1, 2}, {3}), ({1, 2, 3, 4}, {3})]:
        with pytest.raises(NoChannelError, match="all 3 channels"):
            numbers.free(*taken)
    assert numbers.free({1, 2, 3}, spare=True) == 4
    assert numbers.free({1, 2, 4}, spare=True) == 3
    assert ChannelNumbers(1).free() == 1
    assert ChannelNumbers(0).free(spare=True) == 65_535


def test_an_interrupted_commit_closes_its_channel() -> None:
    driver = ScriptedDriver()
    steps: Generator[Callable[[], Any], Any, None] = transactions_over(driver).commit(published("a"))
    call = next(steps)
    while getattr(getattr(call, "func", call), "__name__", "") != "commit":
        call = steps.send(call())
    channel: ScriptedChannel = call.__self__  # type: ignore[attr-defined]
    closing = steps.throw(KeyboardInterrupt())
    closing()
    assert not channel.lives
    with pytest.raises(KeyboardInterrupt):
        steps.send(None)


def test_a_channel_serves_one_transaction_after_the_other() -> None:
    driver = ScriptedDriver()
    transactions = transactions_over(driver)
    run(transactions.commit(published("a")))
    run(transactions.commit(published("b")))
    run(transactions.commit(published()))
    assert driver.done == ["select", "publish a", "commit", "publish b", "commit"]


def test_a_consumer_begins_again_after_a_loss() -> None:
    driver = ScriptedDriver()
    consumption = Consumption(Failover(driver), "q", 1)
    driver.fails["next"] = AWAY
    driver.answers = ["hello"]
    message = run(consumption.next())
    assert message is not None
    assert message.body == b"hello"
    assert driver.done == ["select", "consume q", "next"] * 2
    run(consumption.close())
    assert run(consumption.next()) is None


def test_a_consumer_closed_while_it_begins_takes_nothing() -> None:
    driver = ScriptedDriver()
    consumption = Consumption(Failover(driver), "q", 1)
    driver.answers = ["hello"]
    steps = consumption.next()
    call = next(steps)
    while driver.done != ["select"]:
        call = throw_or_send(steps, call)
    run(consumption.close())
    with pytest.raises(StopIteration) as ended:
        run_on(steps, call)
    assert ended.value.value is None
    assert driver.done == ["select", "consume q"]
    assert not driver.channels[-1].lives


def test_a_transaction_settles_deliveries_of_one_consumer() -> None:
    link = ScriptedLink(ScriptedDriver())
    transaction = Transaction(None)
    transaction.acknowledge(message_on(ScriptedChannel(link), b""))
    with pytest.raises(ClientError, match="one consumer"):
        transaction.reject(message_on(ScriptedChannel(link), b""))
    transaction.end()
    with pytest.raises(ClientError, match="has ended"):
        transaction.publish(b"", "q")


@pytest.mark.parametrize("name", ["", "3.14", "x" * 65])
def test_a_name_that_no_transaction_may_have_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="1 to 64 octets"):
        Transaction(name)


def test_pauses_grow_to_a_bound_and_begin_again() -> None:
    backoff = Backoff(first_s=1, longest_s=3)
    assert [backoff.next_s(1.0) for _ in range(3)] == [1, 2, 3]
    assert backoff.next_s(0.0) == 1.5
    backoff.done()
    assert backoff.next_s(1.0) == 1


def test_a_topology_holds_each_entity_once() -> None:
    topology = Topology()
    for _ in range(2):
        topology.add(Queue(name="q"))
        topology.add(Binding(queue="q", exchange="x"))
    topology.add(Queue(name="q", durable=False))
    assert topology.in_order() == [Queue(name="q", durable=False), Binding(queue="q", exchange="x")]
    topology.remove_exchange("x")
    assert topology.in_order() == [Queue(name="q", durable=False)]
    around = [ExchangeBinding(destination="y", source="x"), ExchangeBinding(destination="x", source="y")]
    kept = ExchangeBinding(destination="y", source="z")
    for binding in (*around, kept, *around):
        topology.add(binding)
    topology.add(Exchange(name="z"))
    assert topology.in_order() == [Exchange(name="z"), Queue(name="q", durable=False), *around, kept]
    topology.remove_binding(around[0])
    topology.remove_queue("y")  # an exchange of that name stays
    assert topology.in_order()[-2:] == [around[1], kept]
    topology.remove_exchange("x")
    assert topology.in_order() == [Exchange(name="z"), Queue(name="q", durable=False), kept]
    assert attrs.asdict(Queue(name="q"))["durable"]
