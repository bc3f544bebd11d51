"""Brokers of one group that a test starts, kills, stops and continues one by one, in any order.

`understudy cluster` starts again what was killed, and stops the primary first; here nobody does anything unasked. The TOML files
are those that it writes, but a backup refuses clients: so a test knows which broker its client has reached.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from tests.integration.broker_process import PROGRAM, BrokerProcess, wait_until
from tests.integration.cluster_process import free_ports
from understudy.broker.command_line.broker_rows import with_all_queues
from understudy.broker.server.process.supervisor import SupervisedBroker
from understudy.ha.trial.edge.cluster_command import FILE_STORE, lay_out

WAIT_S = 90.0
"""For what takes a second or three on a quiet machine, an expulsion (5 s) or an election included."""

KEEP = os.environ.get("UNDERSTUDY_KEEP_STRESS", "")
"""A directory: where logs, and the journals of failed tests, go instead of being removed."""

Row = dict[str, Any]


def without_sections_of(extra: str, text: str) -> str:
    """The TOML ``text`` without the sections that ``extra`` has, too: a section may stand in a file once."""
    for section in set(re.findall(r"^\[\w+\]$", extra, re.MULTILINE)):
        text = re.sub(rf"^{re.escape(section)}\n(?:(?!\[).*\n)*", "", text, flags=re.MULTILINE)
    return text


class GroupBroker(BrokerProcess):
    """One broker of a group. Its configuration is there already."""

    def __init__(self, about: SupervisedBroker, port: int) -> None:
        # Not super().__init__: that writes a configuration.
        self.name = about.broker
        self.folder = about.config.parent
        self.port = port
        self.data = self.folder / about.broker
        self.config = about.config
        self.log = about.log
        self.process = None

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def row(self) -> Row:
        """Its /status; status ``down`` if this process does not answer."""
        if self.up and self.ports.get("pid") == self.pid:
            code, page = self.page("/status")
            if code == 200:
                return with_all_queues(page, self.page)
        return {"broker": self.name, "status": "down", "role": None, "primary": None, "in_sync": []}

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class Group:
    """Three brokers, or another number; ``group["b2"]`` is one of them.

    Args:
        folder: for everything; made if it is not there.
        extra: TOML that is added to each configuration.
        store: the keys of [coordination].
    """

    broker_class: type[GroupBroker] = GroupBroker

    def __init__(self, folder: Path, extra: str = "", *, brokers: int = 3, store: str = FILE_STORE) -> None:
        self.folder = folder
        first = free_ports(brokers)
        self.ports = list(range(first, first + brokers))
        self.brokers: dict[str, GroupBroker] = {}
        for about, port in zip(lay_out(folder, brokers, first, store=store), self.ports, strict=True):
            text = about.config.read_text().replace("[amqp]\n", '[amqp]\non_backup = "refuse"\n', 1)
            if extra:
                text = without_sections_of(extra, text) + "\n" + extra
            about.config.write_text(text)
            self.brokers[about.broker] = self.broker_class(about, port)
        self.store = folder / "coordination.db"
        self.secret = (folder / "link.secret").read_text(encoding="utf-8").strip()

    def __getitem__(self, name: str) -> GroupBroker:
        return self.brokers[name]

    def start(self, *names: str) -> None:
        for name in names or self.brokers:
            self[name].spawn()

    def running(self) -> list[GroupBroker]:
        return [broker for broker in self.brokers.values() if broker.up]

    def rows(self) -> dict[str, Row]:
        return {name: broker.row() for name, broker in self.brokers.items()}

    def ready(self, *names: str, timeout_s: float = WAIT_S) -> dict[str, Row]:
        """Wait until one of these brokers (of all that run) is active, the others are ready, and all agree who is in sync."""
        wanted = sorted(names or [broker.name for broker in self.running()])
        seen: dict[str, Row] = {}

        def probe() -> bool:
            for name in wanted:
                assert self[name].up, f"{name} ended with {self[name].process}: {self[name].log_text()}"
                seen[name] = self[name].row()
            statuses = sorted(row["status"] for row in seen.values())
            return (
                statuses == ["active"] + ["ready"] * (len(wanted) - 1)
                and len({row["primary"] for row in seen.values()}) == 1
                and all(sorted(row["in_sync"]) == wanted for row in seen.values())
            )

        try:
            wait_until(f"{wanted} are active and ready", probe, timeout_s)
        except AssertionError as error:
            brief = {name: {key: row.get(key) for key in ("role", "status", "epoch", "in_sync", "blockers", "lag")}
                     for name, row in seen.items()}  # fmt: skip
            raise AssertionError(f"{error}; found {brief}") from None
        return seen

    def primary(self, timeout_s: float = WAIT_S) -> GroupBroker:
        """Whoever is active."""

        def probe() -> GroupBroker | None:
            found = [broker for broker in self.running() if broker.row()["status"] == "active"]
            return found[0] if found else None

        return wait_until(f"somebody is active, of {list(self.rows().values())}", probe, timeout_s)

    def backups(self) -> list[GroupBroker]:
        primary = self.primary()
        return [broker for broker in self.running() if broker is not primary]

    def kill_all(self) -> None:
        """SIGKILL to all, as nearly at once as a loop can do it."""
        running = self.running()
        for broker in running:
            os.kill(broker.pid, signal.SIGKILL)
        for broker in running:
            assert broker.process is not None
            assert broker.process.wait(20) == -signal.SIGKILL

    def status(self, *options: str) -> str:
        """The output of ``understudy status``."""
        command = [str(PROGRAM), "status", "--data", str(self.folder), *options]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout

    def shown(self) -> dict[str, Row]:
        """The rows of ``understudy status --json``, by broker."""
        return {row["broker"]: row for row in json.loads(self.status("--json"))["brokers"]}

    # -- looking inside -------------------------------------------------------------------------------------------

    def digests(
        self, queues: Collection[str] = (), brokers: Collection[GroupBroker] = ()
    ) -> dict[str, dict[str, tuple[int, str]]]:
        """By broker that answers (of these, or of all that run), by queue (of these, or of all): number of messages and digest."""
        found: dict[str, dict[str, tuple[int, str]]] = {}
        for broker in brokers or self.running():
            code, page = broker.page("/digest", WAIT_S)  # a pass over all bodies
            if code == 200:
                shown = [queue for queue in page["queues"] if not queues or queue["name"] in queues]
                found[broker.name] = {queue["name"]: (queue["messages"], queue["digest"]) for queue in shown}
        return found

    def agree(self, queues: Collection[str] = (), timeout_s: float = WAIT_S) -> dict[str, tuple[int, str]]:
        """Wait until all brokers that run digest these queues, or all, alike (a backup hears of stability a moment later)."""
        last: dict[str, dict[str, tuple[int, str]]] = {}

        def probe() -> bool:
            last.clear()
            last.update(self.digests(queues))
            stated = list(last.values())
            return len(stated) == len(self.running()) and all(each == stated[0] for each in stated)

        try:
            wait_until("all brokers digest alike", probe, timeout_s)
        except AssertionError as error:
            names = {queue for stated in last.values() for queue in stated}
            differing = {
                queue: {broker: stated.get(queue) for broker, stated in last.items()}
                for queue in sorted(names)
                if len({stated.get(queue) for stated in last.values()}) > 1
            }
            raise AssertionError(f"{error}; {list(last)} answer, these differ: {differing}") from None
        return next(iter(last.values()))

    def settled(self, timeout_s: float = WAIT_S) -> None:
        """Wait until nothing is open: no transaction anywhere, nothing handed out on the primary."""

        def open_work() -> dict[str, Any]:
            found: dict[str, Any] = {}
            for broker in self.running():
                row = broker.row()
                busy = [queue["name"] for queue in row["queues"] if queue["uncommitted"] or queue["acquired"]]
                if any(row["transactions"].values()) or busy:
                    found[broker.name] = (row["transactions"], busy)
            return found

        try:
            wait_until("nothing is open", lambda: not open_work(), timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; still open: {open_work()}") from None

    # -- the end --------------------------------------------------------------------------------------------------

    def logs(self) -> str:
        return "\n".join(f"== {broker.log.name}\n{broker.log_text()}" for broker in self.brokers.values())

    def check_logs(self) -> None:
        """No broker met what it did not expect."""
        for broker in self.brokers.values():
            found = re.search(r"^.*( critical |Traceback)(.*\n){0,40}", broker.log_text(), re.MULTILINE)
            assert found is None, f"{broker.name}: {found[0]}"

    def stop(self) -> None:
        """SIGTERM to all, the primary first; all must end with 0."""
        running = sorted(self.running(), key=lambda broker: broker.row()["role"] != "primary")
        for broker in running:
            assert broker.process is not None
            broker.process.send_signal(signal.SIGTERM)
            wait_until(f"{broker.name} has said goodbye", lambda b=broker: b.row()["status"] in ("stopped", "down"))  # type: ignore[misc]
        for broker in running:
            assert broker.process is not None
            assert broker.process.wait(60) == 0, broker.log_text()

    def abandon(self) -> None:
        """Kill what still runs, stopped or not."""
        for broker in self.running():
            broker.kill()


def keep_or_remove(folder: Path, failed: bool) -> None:
    """A group leaves a gigabyte of journals behind; pytest would keep that of its last three runs."""
    if KEEP and failed:
        target = Path(KEEP) / f"{folder.parent.name}-{time.time():.0f}"
        with contextlib.suppress(OSError):
            shutil.copytree(folder, target)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running_group(
    folder: Path, extra: str = "", *, brokers: int = 3, group_class: Callable[..., Group] = Group
) -> Iterator[Group]:
    """A group for the time of a ``with``: all in sync at the start; at the end those that run must end well."""
    group = group_class(folder / "group", extra, brokers=brokers)
    failed = True
    try:
        group.start()
        group.ready(*group.brokers)
        yield group
        group.check_logs()
        group.stop()
        group.check_logs()
        failed = False
    except BaseException:
        print(group.logs())
        raise
    finally:
        group.abandon()
        keep_or_remove(group.folder, failed)
