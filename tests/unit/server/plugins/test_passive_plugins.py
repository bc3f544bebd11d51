"""Passive plugins: what they hear is frozen, what they raise changes nothing and is shown, what they do not want costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import pytest
import structlog.testing

from tests.unit.core.core_kit import Core, publish
from understudy.broker.amqp.methods import BASIC_GET, TX_COMMIT, TX_ROLLBACK, TX_SELECT
from understudy.broker.config import Config
from understudy.broker.core.requests.admin import CommandTakenError
from understudy.broker.plugin_api.metrics import Family
from understudy.broker.plugin_api.pages import Page, Pages, RunsInSlices
from understudy.broker.plugin_api.passive_plugin import PassivePlugin
from understudy.broker.plugin_api.plugin import PluginError
from understudy.broker.plugin_api.plugin_commands import CommandRefusedError, CommandRequest, Commands
from understudy.broker.plugin_api.views import DeliveryView, QueueName, TxView
from understudy.broker.server.plugins import edge_plugin
from understudy.broker.server.plugins.passive_guard import PassiveGuard, PassivePluginError
from understudy.broker.server.plugins.plugins import Plugins, make_plugins
from understudy.broker.server.sockets.stranger_log import LINES
from understudy.broker.server.web.status_report import StatusReport
from understudy.ha.plugin import HaPlugin

NOTHING = Config()
Q = QueueName("/", "q")


class Watcher(PassivePlugin):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.heard: list[tuple[str, Any]] = []

    def transaction_prepared(self, tx: TxView) -> None:
        self.heard.append(("prepared", tx))

    def transaction_decided(self, tx: TxView) -> None:
        self.heard.append(("decided", tx))

    def delivered(self, delivery: DeliveryView) -> None:
        self.heard.append(("delivered", delivery))


class Broken(PassivePlugin):
    """Raises wherever it can."""

    def transaction_prepared(self, tx: TxView) -> None:
        raise ZeroDivisionError(tx.tx_id)

    def transaction_decided(self, tx: TxView) -> None:
        raise ZeroDivisionError(tx.tx_id)

    def delivered(self, delivery: DeliveryView) -> None:
        raise SystemExit(delivery.queue)

    def tick(self, now_ms: int) -> None:
        raise RecursionError(now_ms)

    def status(self) -> Mapping[str, Any]:
        return {"cannot be shown": object()}

    def metrics(self) -> Iterable[Family]:
        raise KeyError("metrics")

    def commands(self) -> Commands:
        return {"break": self._break}

    def _break(self, request: CommandRequest) -> None:
        raise OSError("broken")


def committed(core: Core, verb: int = TX_COMMIT) -> None:
    """One message taken, two brought, by a transaction; and then one more is taken."""
    client = core.client()
    core.queue(client, "q")
    client.publish("q", b"before")
    core.sync()
    client.method(TX_SELECT)
    client.method(BASIC_GET, "q", False)
    client.heard()
    client.send(publish("q", b"1"), publish("q", b"22"))
    client.method(0x3C0050, 0, True)  # basic.ack
    client.method(verb)
    core.sync()
    core.sync()
    assert client.heard()[-1] in ("tx.commit-ok", "tx.rollback-ok")


@pytest.mark.parametrize(("verb", "end"), [(TX_COMMIT, "committed"), (TX_ROLLBACK, "rolled-back")])
def test_a_watcher_hears_of_deliveries_and_transactions(verb: int, end: str) -> None:
    core = Core()
    watcher = Watcher(NOTHING)
    PassiveGuard("watch", watcher).listen(core.broker)
    committed(core, verb)
    (delivery,) = [told for hook, told in watcher.heard if hook == "delivered"]
    assert (delivery.queue, delivery.redelivered, delivery.octets) == (Q, False, len(b"before"))
    views = [
        (hook, tx.state, dict(tx.enqueued), dict(tx.dequeued)) for hook, tx in watcher.heard if hook != "delivered"
    ]
    if end == "committed":
        assert views == [("prepared", "prepared", {Q: 2}, {Q: 1}), ("decided", end, {Q: 2}, {Q: 1})]
    else:
        assert views == [("decided", end, {Q: 2}, {})]  # acknowledgements are recorded at the commit


def test_two_watchers_hear_the_same_in_the_order_of_the_configuration() -> None:
    core = Core()
    heard: list[tuple[str, Any]] = []
    watchers = [Watcher(NOTHING), Watcher(NOTHING)]
    for watcher in watchers:
        watcher.heard = heard
    Plugins(None, tuple(PassiveGuard(f"w{i}", watcher) for i, watcher in enumerate(watchers))).listen(core.broker)
    committed(core)
    assert heard[::2] == heard[1::2]
    assert [hook for hook, _ in heard[::2]] == ["delivered", "prepared", "decided"]


def test_what_a_passive_plugin_raises_changes_nothing_and_is_shown() -> None:
    core = Core()
    guard = PassiveGuard("broken", Broken(NOTHING))
    watcher = Watcher(NOTHING)
    with structlog.testing.capture_logs() as lines:
        Plugins(None, (guard, PassiveGuard("watch", watcher))).listen(core.broker)
        committed(core)
        for now_ms in range(LINES + 5):
            guard.tick(now_ms)
        assert list(guard.metrics()) == []
        with pytest.raises(CommandRefusedError, match="plugin broken failed: OSError"):
            guard.commands()["break"](CommandRequest(arguments={}, user="u", vhost="/", answer=lambda _: None))
    assert core.broker.counters.totals["committed"] == 1
    assert [hook for hook, _ in watcher.heard] == ["delivered", "prepared", "decided"]
    shown = guard.status()
    assert shown.keys() == {"errors", "newest_error"}
    assert shown["errors"] == 3 + LINES + 5 + 3
    assert shown["newest_error"]["hook"] == "status"
    assert sum("tick" in line["event"] for line in lines) == LINES
    (line,) = [line for line in lines if line["event"] == "plugin broken: transaction_decided failed"]
    assert line["error"].startswith("ZeroDivisionError: 1.")


def test_an_error_whose_text_cannot_be_made_and_metrics_that_are_none_change_nothing() -> None:
    class Unspeakable(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise ValueError("no text")

    class Odd(PassivePlugin):
        def tick(self, now_ms: int) -> None:
            raise Unspeakable

        def metrics(self) -> Iterable[Family]:
            return ["no family"]  # type: ignore[list-item]

    guard = PassiveGuard("odd", Odd(NOTHING))
    guard.tick(0)
    assert guard.status()["newest_error"]["error"] == "Unspeakable"
    assert list(guard.metrics()) == []
    assert guard.status()["newest_error"]["error"] == "TypeError: str is no Family"


def test_a_page_whose_path_is_taken_refuses_the_start() -> None:
    class Hides(PassivePlugin):
        def pages(self, slices: RunsInSlices) -> Pages:
            return {"/status": lambda _: Page(200, {})}

    async def pages() -> None:
        plugins = Plugins(None, (PassiveGuard("hides", Hides(NOTHING)),))
        StatusReport(NOTHING, {}, plugins).pages()

    with pytest.raises(PluginError, match="the path /status"):
        asyncio.run(pages())


def test_a_hook_that_nobody_wants_is_not_hung_up() -> None:
    broker = Core().broker
    PassiveGuard("silent", PassivePlugin(NOTHING)).listen(broker)
    assert (broker.hooks.on_delivered, broker.state.applying.on_applied_tx, broker.transactions.engines) == ([], [], [])


def test_two_commands_of_one_name_refuse_the_start() -> None:
    guards = (PassiveGuard("a", Broken(NOTHING)), PassiveGuard("b", Broken(NOTHING)))
    with pytest.raises(CommandTakenError, match="'break'"):
        Plugins(None, guards).listen(Core().broker)


class Extends:
    api_version: ClassVar[int] = 1
    extends_core: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config


def switched_on(monkeypatch: pytest.MonkeyPatch, *classes: type) -> Plugins:
    monkeypatch.setattr(edge_plugin, "find_plugins", lambda _: list(classes))
    return make_plugins(Config(plugins={kind.__name__: True for kind in classes}))


def test_one_plugin_extends_the_core_and_any_number_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = switched_on(monkeypatch, Watcher, HaPlugin, Broken)
    assert isinstance(plugins.extending, HaPlugin)
    assert [guard.name for guard in plugins.passive] == ["Watcher", "Broken"]
    with pytest.raises(PluginError, match=r"one plugin at a time can extend the core, .* Extends, HaPlugin"):
        switched_on(monkeypatch, Extends, Watcher, HaPlugin)


def test_a_plugin_that_cannot_be_made_or_started_refuses_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unmade(PassivePlugin):
        def __init__(self, config: Config) -> None:
            raise KeyError("key")

    class Unstarted(PassivePlugin):
        async def start(self) -> None:
            raise OSError("port in use")

    with pytest.raises(PassivePluginError, match="'Unmade' cannot be made: KeyError"):
        switched_on(monkeypatch, Unmade)
    (guard,) = switched_on(monkeypatch, Unstarted).passive
    with pytest.raises(PassivePluginError, match="'Unstarted' does not start: OSError: port in use"):
        asyncio.run(guard.start(None))  # type: ignore[arg-type]  # a passive plugin is not given its host


class Follower(PassivePlugin):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.heard: list[bool] = []

    def leading_changed(self, leads: bool) -> None:
        self.heard.append(leads)


def test_a_plugin_hears_who_leads_once_for_each_change() -> None:
    core, follower = Core(), Follower(NOTHING)
    guard = PassiveGuard("follows", follower)
    guard.tick(1)
    assert follower.heard == [], "there is no core yet"
    guard.listen(core.broker)
    for now_ms in range(2, 5):
        guard.tick(now_ms)
    assert follower.heard == [True]
    core.broker.role.leading = False
    guard.tick(5)
    core.broker.role.leading = True
    guard.tick(6)
    guard.dropped("step-down")
    guard.tick(7)
    assert follower.heard == [True, False, True, False]
