"""The port of coordinators, as a plugin finds it: bases, versions, views."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import attrs
import pytest

from understudy.broker.amqp.properties import encode_properties
from understudy.broker.coordinators import (
    Coordinator,
    CoordinatorHost,
    GroupCommitCoordinator,
    NullCoordinator,
    Order,
    Participant,
    QueueName,
    TxView,
    UnorderedCoordinator,
    find_coordinator,
    needs_two_phases,
)
from understudy.broker.plugin_api.plugin import PluginError


class FakeHost:
    """Only carries the name."""

    name = "fake"
    now_ms = 0

    def requests(self) -> Sequence[TxView]:
        return ()

    def run_prepare_ordered(self, batch: Sequence[TxView]) -> None: ...

    def refuse(self, tx: TxView, reason: str) -> None: ...

    def carry_out(self, order: Order) -> None: ...

    def wait_for_prior(self, tx: TxView, prior: str) -> None: ...


HOST: CoordinatorHost = FakeHost()


def view(*properties: bytes) -> TxView:
    return TxView(
        tx_id="1.5",
        name="",
        state="prepared",
        enqueued={QueueName("/", "b"): 2},
        dequeued={QueueName("/", "a"): 1, QueueName("/", "b"): 1},
        octets=7,
        properties=properties,
    )


class Reversed(GroupCommitCoordinator):
    def order(self, batch: Sequence[TxView]) -> Order:
        return Order(now=batch[::-1])


class Renamed(GroupCommitCoordinator):
    """Overrides nothing that counts."""

    colour = "blue"


class Listening(Participant):
    def commit_ordered(self, tx: TxView, csn: int) -> None:
        pass


@pytest.mark.parametrize("base", [NullCoordinator, UnorderedCoordinator, GroupCommitCoordinator, Renamed])
def test_what_overrides_nothing_needs_no_two_phases(base: type[Coordinator]) -> None:
    assert not needs_two_phases(base(HOST, {}))


def test_what_overrides_something_does() -> None:
    assert needs_two_phases(Reversed(HOST, {}))
    assert needs_two_phases(Listening())
    assert not needs_two_phases(Participant())


def test_the_null_coordinator_is_not_to_be_asked() -> None:
    with pytest.raises(AssertionError, match=r"null coordinator was asked to log transaction 1\.5"):
        NullCoordinator(HOST, {}).log_and_order(view())


def test_a_view_is_read_only_and_its_own_key() -> None:
    first, second = view(), view()
    assert first != second
    assert len({first, second, first}) == 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        first.tx_id = "2.5"  # type: ignore[misc]
    assert not hasattr(first, "__dict__")
    assert first.queues == (QueueName("/", "a"), QueueName("/", "b"))


def test_a_header_is_that_of_the_first_message_that_has_it() -> None:
    plain = encode_properties({"content_type": "text/plain"})
    other = encode_properties({"headers": {"x-other": 1}})
    low, high = (encode_properties({"headers": {"x-priority": number}}) for number in (3, 9))
    assert view(plain, other, low, high).header("x-priority") == 3
    assert view(plain, other).header("x-priority") is None


def test_the_three_are_found_by_name() -> None:
    assert find_coordinator("group_commit") is GroupCommitCoordinator
    assert find_coordinator("unordered") is UnorderedCoordinator
    assert find_coordinator("null") is NullCoordinator
    with pytest.raises(PluginError, match=r"'group_comit' is not installed \(did you mean 'group_commit'\?\)"):
        find_coordinator("group_comit")


class Old(GroupCommitCoordinator):
    api_version = 0


class Silent(Reversed):
    """An ``api_version`` inherited from a built-in class is no statement."""


class Newer(GroupCommitCoordinator):
    api_version = 2


class NewerToo(Newer):
    """A plugin may have a base of its own that states it."""


class NoCoordinator:
    api_version = 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Old", "coordinator 'x' is made for coordinator API 0, this broker has 1"),
        ("Silent", "coordinator 'x' does not state its api_version, this broker has coordinator API 1"),
        ("NewerToo", "coordinator 'x' is made for coordinator API 2, this broker has 1"),
        ("NoCoordinator", "coordinator 'x' is .*NoCoordinator.*: it has to be a subclass of Coordinator"),
    ],
)
def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, said: str) -> None:
    point = EntryPoint("x", "unused", "understudy.coordinators")
    monkeypatch.setattr(EntryPoint, "load", lambda self: globals()[name])
    monkeypatch.setattr(
        "understudy.broker.plugin_api.plugin.entry_points", lambda group: importlib.metadata.EntryPoints([point])
    )
    with pytest.raises(PluginError, match=said):
        find_coordinator("x")


def installed(folder: Path, package: str, value: str) -> None:
    """A package that brings the coordinator ``x``, as an installer leaves it."""
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[understudy.coordinators]\nx = {value}\n")


def test_one_name_of_two_packages_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    installed(tmp_path, "first", "understudy.broker.coordinators:UnorderedCoordinator")
    installed(tmp_path, "copy", "understudy.broker.coordinators:UnorderedCoordinator")
    assert find_coordinator("x") is UnorderedCoordinator, "both name the same class"
    installed(tmp_path, "other", "understudy.broker.coordinators:NullCoordinator")
    with pytest.raises(PluginError) as raised:
        find_coordinator("x")
    assert "coordinator 'x' is brought by two packages: " in str(raised.value)
    assert "other (understudy.broker.coordinators:NullCoordinator)" in str(raised.value)
    assert "UnorderedCoordinator)" in str(raised.value)
    assert find_coordinator("null") is NullCoordinator, "the others can be loaded"
