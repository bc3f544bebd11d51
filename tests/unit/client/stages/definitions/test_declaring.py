"""Declarations of an application, and mistakes that are named before the first message."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import attrs
import msgspec
import psycopg
import pytest
from sqlalchemy.orm import Session

from understudy.client.stages import (
    AsyncConnection,
    ConfigurationError,
    Context,
    DemarcationError,
    Retry,
    Stages,
    postgresql,
    sqlite,
)


class Order(msgspec.Struct, frozen=True):
    number: int


@attrs.frozen
class Reserved:
    order: int


@dataclasses.dataclass(frozen=True)
class Charged:
    order: int


def application(**arguments: Any) -> Stages:
    return Stages("shop", broker="amqp://b1,b2:5673/", **arguments)


def test_a_stage_is_called_as_the_function_that_it_was() -> None:
    @application().stage("reserve")
    def reserve(order: Order) -> Reserved:
        """Take it."""
        return Reserved(order.number)

    assert reserve(Order(3)) == Reserved(3)
    assert reserve.__doc__ == "Take it."


class Model:
    """A model of pydantic, as far as it is asked."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]  # equality alone is looked at

    def model_dump_json(self) -> str:
        return str(self.number)

    @classmethod
    def model_validate_json(cls, body: bytes) -> Model:
        return cls(int(body))


KINDS = ["msgspec", "attrs", "dataclass", "pydantic"]


@pytest.mark.parametrize("message", [Order(3), Reserved(3), Charged(3), Model(3)], ids=KINDS)
def test_messages_of_each_kind_come_back_as_they_were(message: Any) -> None:
    def reserve(message: Any) -> None: ...

    reserve.__annotations__["message"] = type(message)
    stage = application().stage("reserve")(reserve)
    assert stage.codec.decode(stage.encode(message)) == message
    with pytest.raises(DemarcationError, match="takes messages of type"):
        stage.encode({"number": 3})


def test_the_database_and_the_context_are_found_by_their_types(tmp_path: Any) -> None:
    stages = application(database=sqlite(tmp_path / "shop.db"))

    @stages.stage("a")
    async def a(order: Order, ctx: Context, db: AsyncConnection) -> Reserved: ...  # type: ignore[empty-body]

    @stages.stage("b", once=True)
    def b(order: Reserved, connection: sqlite3.Connection) -> None: ...

    stages.flow("checkout", a, b)
    stages.check()
    assert (a.signature.database, a.signature.context, a.rules.database) == ("db", "ctx", True)
    assert (b.signature.database, b.signature.context, b.blocking) == ("connection", None, True)
    assert not (tmp_path / "shop.db").exists()


def no_annotation(order) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


def no_parameter() -> None: ...


def odd_parameter(order: Order, other: int) -> None: ...


def blocking_database(order: Order, db: sqlite3.Connection) -> None: ...


def two_contexts(order: Order, one: Context, two: Context) -> None: ...


def odd_message(order: Callable[[], int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (no_annotation, {}, "parameter 'order' has no annotation"),
        (no_parameter, {}, "has no parameter"),
        (odd_parameter, {}, "parameter 'other' is of type <class 'int'>"),
        (blocking_database, {}, "a database is given to Stages"),
        (two_contexts, {}, "parameters 'one' and 'two' are for the same thing"),
        (odd_message, {}, "cannot be read from JSON"),
        (lambda order: None, {"once": True}, "once=True, which needs a database"),
    ],
)
def test_a_function_that_cannot_be_a_stage_is_named_at_the_start(
    function: Any, arguments: dict[str, Any], text: str
) -> None:
    stages = application()
    stages.stage("reserve", **arguments)(function)
    with pytest.raises(ConfigurationError, match=text) as raised:
        stages.check()
    assert "'reserve'" in str(raised.value)


def two_kinds(order: Order, db: sqlite3.Connection, other: psycopg.Connection) -> None: ...


def two_of_one(order: Order, db: sqlite3.Connection, session: Session) -> None: ...


def other_first(order: Order, other: psycopg.Connection[Any], db: sqlite3.Connection) -> None: ...


@pytest.mark.parametrize(
    ("function", "texts"),
    [
        (two_kinds, ["'db' (sqlite3.Connection)", "'other' (psycopg.Connection)"]),
        (two_of_one, ["'db' (sqlite3.Connection)", "'session' (sqlalchemy.orm.session.Session)"]),
        (other_first, ["'other' (psycopg.Connection)", "'db' (sqlite3.Connection)"]),
    ],
)
def test_a_second_database_is_refused_and_both_are_named(function: Any, texts: list[str]) -> None:
    stages = application(database=sqlite("shop.db"))
    stages.stage("reserve")(function)
    with pytest.raises(
        ConfigurationError, match=r"are two databases; a stage has one, which is sqlite:shop\.db"
    ) as raised:
        stages.check()
    for each in texts:
        assert each in str(raised.value)


def test_an_application_has_one_database() -> None:
    with pytest.raises(ConfigurationError, match=r"database= takes one; two are given: sqlite:a.db and sqlite:b.db"):
        application(database=[sqlite("a.db"), sqlite("b.db")])


@pytest.mark.parametrize(
    ("arguments", "retry", "text"),
    [
        ({"inbox_retention": timedelta(days=5)}, None, "inbox_retention is 5 days, .* 0:01:03 [+] 6 days"),
        ({"dead_letter_retention": timedelta(days=7)}, None, "inbox_retention is 7 days, .* 0:01:03 [+] 7 days"),
        ({}, Retry(3, first=86400, most=86400), "inbox_retention is 7 days, .* 2 days, 0:00:00 [+] 6 days"),
    ],
)
def test_an_inbox_that_forgets_too_early_is_refused_and_both_times_are_named(
    arguments: dict[str, Any], retry: Retry | None, text: str
) -> None:
    stages = application(database=sqlite("shop.db"), **arguments)

    @stages.stage("reserve", once=True, retry=retry)
    def reserve(order: Order, db: sqlite3.Connection) -> None: ...

    with pytest.raises(ConfigurationError, match=f"stage 'reserve': {text}"):
        stages.check()


def test_by_default_the_retention_fits_and_without_once_it_does_not_matter() -> None:
    for arguments, once in ({}, True), ({"inbox_retention": timedelta()}, False):
        stages = application(database=sqlite("shop.db"), **arguments)

        @stages.stage("reserve", once=once)
        def reserve(order: Order, db: sqlite3.Connection) -> None: ...

        stages.check()
    with pytest.raises(ConfigurationError, match="inbox_retention = 3651 days"):
        application(inbox_retention=timedelta(days=3651))


async def with_await(order: Order, db: psycopg.AsyncConnection) -> None: ...


def with_psycopg(order: Order, db: psycopg.Connection) -> None: ...


POSTGRESQL = "host=h dbname=shop user=me"


@pytest.mark.parametrize(
    ("database", "function", "options", "text"),
    [
        (None, odd_parameter, {}, "needs a database: .*postgresql"),
        (
            sqlite("shop.db"),
            blocking_database,
            {},
            "sqlite:shop.db cannot prepare a transaction: use once=True, or postgres",
        ),
        (postgresql(POSTGRESQL), with_psycopg, {"once": True}, "xa=True and once=True"),
        (postgresql(POSTGRESQL), with_psycopg, {"precheck": True}, "the broker is asked by its PREPARE"),
        (postgresql(POSTGRESQL), with_await, {}, "is an `async def`: write it as a `def`"),
        (postgresql(POSTGRESQL + " sslmode=require"), with_psycopg, {}, "has 'sslmode'; a branch takes host, port"),
        (postgresql("host=h"), with_psycopg, {}, "has no 'dbname'"),
    ],
)
def test_a_stage_that_cannot_have_xa_is_named_with_the_remedy(
    database: Any, function: Any, options: dict[str, Any], text: str
) -> None:
    stages = application(database=database)
    stages.stage("reserve", xa=True, **options)(function)
    with pytest.raises(ConfigurationError, match=text):
        stages.check()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"state_server": "nowhere"}, "address 'nowhere' is neither host:port nor unix:/path"),
        ({"state_server": {"address": "h:1", "secret": "s"}}, "secret"),
        ({"broker": ["amqp://me@b1/", "amqp://you@b2/"]}, "broker b2 has another login, vhost or scheme than b1"),
        ({"name": "my shop"}, "'stages:my shop' is not 1 to 128 printable ASCII characters without spaces"),
    ],
)
def test_a_joint_place_that_cannot_be_is_named(arguments: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {
        "name": "shop",
        "broker": "amqp://b1,b2:5673/",
        "database": postgresql(POSTGRESQL),
    } | arguments
    stages = Stages(**given)
    stages.stage("reserve", xa=True)(with_psycopg)
    with pytest.raises(ConfigurationError, match=text):
        stages.check()


def test_the_joint_place_has_the_servers_of_the_application() -> None:
    broker = [f"amqps://me:word@{each}/v%2F1?cacertfile=ca.pem" for each in ("b1", "[::1]:5673")]
    stages = Stages("shop", broker=broker, database=postgresql(POSTGRESQL), state_server="unix:/run/s")
    stages.stage("reserve", xa=True)(with_psycopg)
    stages.check()
    profile = stages.joint_profile()
    assert profile.state_server == "unix:/run/s"
    bank, queues = (each.options for each in profile.resources)
    assert (bank["host"], bank["port"], bank["database"], bank["user"]) == ("h", 5432, "shop", "me")
    assert (queues["addresses"], queues["vhost"], queues["password"]) == (["b1:5671", "[::1]:5673"], "v/1", "word")
    assert (queues["tls"], queues["tls_ca"]) == (True, "ca.pem")


def test_two_stages_of_one_name_are_refused() -> None:
    stages = application()
    stages.stage("reserve")(odd_parameter)
    with pytest.raises(ConfigurationError, match="two stages are named 'reserve': odd_parameter"):
        stages.stage("reserve")(no_parameter)


def test_a_flow_whose_types_do_not_fit_is_named_at_the_start() -> None:
    stages = application()

    @stages.stage("a")
    def a(order: Order) -> Reserved: ...  # type: ignore[empty-body]

    @stages.stage("b")
    def b(order: Charged) -> Charged: ...  # type: ignore[empty-body]

    stages.flow("checkout", a, b)
    with pytest.raises(ConfigurationError, match="stage 'a' returns Reserved, and stage 'b' takes Charged"):
        stages.check()
    del a.flows["checkout"]
    with pytest.raises(ConfigurationError, match="'b' returns Charged, and no stage follows it in flow 'checkout'"):
        stages.check()


def test_a_message_outside_of_a_stage_and_an_initiation_is_refused() -> None:
    stage = application().stage("reserve")(blocking_database)
    with pytest.raises(DemarcationError, match=r"stages\.begin"):
        stage.send(Order(1))


@pytest.mark.parametrize("broker", ["b1", "http://b1/", "amqp://", []])
def test_an_address_that_is_none_is_named(broker: Any) -> None:
    with pytest.raises(ConfigurationError, match="address"):
        Stages("shop", broker=broker)


def test_an_address_may_name_several_brokers() -> None:
    stages = Stages("shop", broker="amqp://me:word@b1,b2:5673/shop?heartbeat=5")
    assert stages.addresses == ["amqp://me:word@b1/shop?heartbeat=5", "amqp://me:word@b2:5673/shop?heartbeat=5"]


GROUP = "zookeeper://me:word@z1,z2:2181/shop?chroot=/production"


def test_a_group_may_be_named_by_its_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of it before a worker starts, also for a stage with ``xa=True``, whose branches need addresses."""
    stages = Stages("shop", broker=GROUP, database=postgresql("host=h dbname=shop user=shop"))
    stages.stage("charge", xa=True)(of_psycopg)
    stages.check()
    assert stages.addresses == [GROUP]
    found = ["amqp://me:word@b2:5673/", "amqp://me:word@b1:5672/"]
    monkeypatch.setattr("understudy.client.connection.zookeeper.find_brokers", lambda group: found)
    (_, broker) = stages.joint_profile().resources
    assert broker.options["addresses"] == ["b1:5672", "b2:5673"]  # whichever leads


def test_a_group_needs_the_client_of_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.client.stages.broker.addresses.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'understudy\[stages,zookeeper\]'"):
        Stages("shop", broker=GROUP)


def of_psycopg(order: Order, db: psycopg.Connection) -> None: ...


def test_a_worker_in_a_thread_raises_at_its_stop_what_has_ended_it(tmp_path: Any) -> None:
    stages = application(database=sqlite(tmp_path))
    stages.stage("reserve", once=True)(blocking_database)
    worker = stages.run_in_thread()
    worker._thread.join()
    with pytest.raises(ConfigurationError, match="inbox and outbox cannot be made"):
        worker.stop()
    assert not worker.alive
    with pytest.raises(ConfigurationError, match="has no stage"):
        application().run_in_thread()


def test_concurrency_may_be_chosen_where_a_worker_is_started() -> None:
    stages = application()
    stages.stage("reserve")(reserve_of)
    stages.set_concurrency("reserve", 7)
    assert stages.stages["reserve"].concurrency == 7
    with pytest.raises(ConfigurationError, match="stage 'reserve': concurrency = 0; 1 to 1,000 are allowed"):
        stages.set_concurrency("reserve", 0)
    with pytest.raises(ConfigurationError, match="stage 'pay': the application 'shop' has reserve"):
        stages.set_concurrency("pay", 1)


def reserve_of(order: Order) -> None: ...
