"""Lines that ``understudy cluster`` prints can be read and stop no broker; the files that it lays out can be started with."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

import pytest
import typer

from understudy.broker.config import load
from understudy.broker.server.files import file_storage
from understudy.ha.trial.edge import cluster_command
from understudy.ha.trial.edge.cluster_command import SECRET_FILE, _Lines, _locked, _print, lay_out
from understudy.ha.trial.edge.cluster_observers import FeedDetail, ObserverPlan, observer_plan


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_secret_that_a_power_failure_left_empty_is_made_anew(tmp_path: Path) -> None:
    """No broker took the configuration that was made with it, and none said where it came from."""
    (tmp_path / SECRET_FILE).write_text("")
    files = [each.config for each in lay_out(tmp_path, 2, 5672)]
    secrets = {load(path).link.secret for path in files}
    assert secrets == {(tmp_path / SECRET_FILE).read_text().strip()}
    assert all(secrets)
    lay_out(tmp_path, 2, 5672)
    assert {load(path).link.secret for path in files} == secrets


def test_each_broker_writes_its_feed_to_a_directory_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / 'a "feed"'
    files = [
        each.config for each in lay_out(tmp_path, 2, 5672, ObserverPlan(directory=out, detail=FeedDetail.MESSAGES))
    ]
    configs = [load(path) for path in files]
    assert [config.feed.out for config in configs] == [out / "b1", out / "b2"]
    assert {config.feed.detail for config in configs} == {"messages"}
    assert all(config.plugins == {"ha": True, "feed": True} for config in configs)
    assert [load(each.config).plugins for each in lay_out(tmp_path, 1, 5672)] == [{"ha": True}]


def test_all_brokers_write_their_feed_to_one_topic(tmp_path: Path) -> None:
    plan = observer_plan(FeedDetail.ROLES, None, tmp_path, "k1:9092, k2:9092", "events", "")
    configs = [load(each.config) for each in lay_out(tmp_path, 2, 5672, plan)]
    assert {config.feed.topic for config in configs} == {"events"}
    assert {config.kafka.hosts for config in configs} == {("k1:9092", "k2:9092")}
    assert [config.feed.out for config in configs] == [None, None]


def test_all_brokers_send_their_transactions_to_one_topic(tmp_path: Path) -> None:
    """Beside a feed into files, and without one."""
    for feed, plugins in (
        (FeedDetail.ROLES, {"ha": True, "feed": True, "outlet": True}),
        (None, {"ha": True, "outlet": True}),
    ):
        plan = observer_plan(feed, None, tmp_path, "k1:9092", "", "{vhost}.{queue}")
        configs = [load(each.config) for each in lay_out(tmp_path, 2, 5672, plan)]
        assert {config.outlet.topic for config in configs} == {"{vhost}.{queue}"}
        assert all(config.outlet.create_topics for config in configs)
        assert all(config.plugins == plugins for config in configs)
        assert {config.kafka.hosts for config in configs} == {("k1:9092",)}
        assert {config.feed.topic for config in configs} == {""}


@pytest.mark.parametrize(
    ("feed", "out", "kafka", "topic", "outlet", "said"),
    [
        (None, None, "k1:9092", "t", "", "give --feed too"),
        (FeedDetail.ROLES, None, "k1:9092", "", "", "give --topic for the feed, --outlet for transactions"),
        (FeedDetail.ROLES, None, "", "t", "", "is a topic of Kafka: give --kafka HOSTS too"),
        (None, None, "", "", "t", "is a topic of Kafka: give --kafka HOSTS too"),
        (FeedDetail.ROLES, Path("out"), "k1:9092", "t", "", "and not into --feed-out"),
        (FeedDetail.ROLES, None, "k1", "t", "", "'k1' is not valid, expected 'host:port'"),
        (FeedDetail.ROLES, None, "k1:9092", "a topic", "", "'a topic' is not valid"),
        (None, None, "k1:9092", "", "a {topic}", "'a .topic.' is not valid"),
    ],
)
def test_options_of_feed_and_outlet_that_do_not_go_together(
    feed: FeedDetail | None, out: Path | None, kafka: str, topic: str, outlet: str, said: str
) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        observer_plan(feed, out, Path("data"), kafka, topic, outlet)


def test_the_name_of_each_directory_that_is_made_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power failure may take all brokers' journals away, with all that was answered."""
    synced: list[Path] = []
    monkeypatch.setattr(file_storage, "_sync_directory", synced.append)
    with _locked(tmp_path / "a" / "cluster"):
        assert synced == [tmp_path, tmp_path / "a"]
    lay_out(tmp_path / "b" / "cluster", 1, 5672)
    assert synced[2:] == [tmp_path, tmp_path / "b"]


def test_a_line_that_cannot_be_printed_is_a_line_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk under the redirected output used to end the command, and with it all brokers."""
    monkeypatch.setattr(sys, "stdout", FullDisk())
    _print("b1 is active")
    _print("b2 is ready")


class NoBrokers:
    """A supervisor that has nothing to do."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def run(self) -> int:
        return 0


def test_what_the_terminal_cannot_show_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a queue was enough to end the command, and with it all brokers."""
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    monkeypatch.setattr(cluster_command, "Supervisor", NoBrokers)
    with pytest.raises(typer.Exit):
        cluster_command.cluster(brokers=1, data=tmp_path / "müll")
    assert rb"/m\xfcll: b1 amqp://" in shown.getvalue()


def test_a_line_that_cannot_be_encoded_is_a_line_less(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    _print("queue 'müll': 3 messages to come")
    _print("b1 is active")
    assert shown.getvalue() == b"b1 is active\n"


def said(broker: str, role: str, status: str, **more: object) -> dict[str, object]:
    """A report of the supervisor about a broker."""
    number = int(broker[1:])
    ports = {"port": 5671 + number, "http": 8000 + number, "pid": 100 + number}
    about = {"epoch": 1, "in_sync": ["b1"], "blockers": []}
    return {"event": "status", "broker": broker, "role": role, "status": status, **ports, **about, **more}


def test_when_all_are_ready_for_the_first_time_one_line_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _Lines(Path("data"), 5672, 2)
    assert "; 2 x 128 MiB of disk while empty; " in capsys.readouterr().out
    lines(said("b2", "backup", "ready"))
    lines(said("b1", "primary", "recovering"))
    assert "ready: " not in capsys.readouterr().out
    lines(said("b1", "primary", "active"))
    assert capsys.readouterr().out.splitlines()[-1] == (
        "ready: amqp://guest:guest@127.0.0.1:5672, b1 leads, "
        "status at http://127.0.0.1:8001/status (b1), http://127.0.0.1:8002/status (b2)"
    )
    lines(said("b2", "backup", "joining"))
    lines({"event": "exit", "broker": "b1", "code": -9, "restarts": True})
    lines(said("b1", "backup", "ready"))
    lines(said("b2", "primary", "active"))
    assert "ready: " not in capsys.readouterr().out


def test_an_empty_broker_of_a_cluster_takes_what_the_first_line_says(tmp_path: Path) -> None:
    (one,) = lay_out(tmp_path, 1, 5672)
    journal = load(one.config).journal
    assert journal.reserve_bytes is not None
    assert (journal.reserve_bytes + journal.segment_bytes) >> 20 == cluster_command.EMPTY_MIB
