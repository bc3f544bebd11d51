"""Places for the tests of distributed transactions: one broker without the plugin, a group of one, a group of three (H-52).

A group is `tests.stress.group.Group` and not `understudy cluster`: it takes configuration, and compares what the brokers hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from tests.integration.broker_process import BrokerProcess, remove_journals, wait_until
from tests.integration.dtx_channel import DtxChannel
from tests.stress.group import Group, running_group
from understudy.broker.security import hash_password

SETTLED_S = 90.0
OTHER_VHOST = "/other"
CLERK = "clerk"
"""May do everything but decide branches by hand. Password as name; guest has its own, which a list of users would take away."""

_USERS = "".join(
    f"""
[[users]]
name = "{name}"
password_hash = "{hash_password(name, bytes(16), ln=1)}"
[users.vhosts]
"/" = {{ configure = '{configure}', write = ".*", read = ".*" }}
"{OTHER_VHOST}" = {{ configure = '{configure}', write = ".*", read = ".*" }}
"""
    for name, configure in (("guest", ".*"), (CLERK, r"^test_"))
)


def _with_vhosts(config: Path) -> None:
    """[broker] is there already, and a table cannot be opened twice."""
    text = config.read_text(encoding="utf-8")
    changed = text.replace("[broker]\n", f'[broker]\nvhosts = ["/", "{OTHER_VHOST}"]\n', 1)
    assert changed != text
    config.write_text(changed + _USERS, encoding="utf-8")


@attrs.frozen
class Place:
    """A broker that leads.

    Attributes:
        port: its AMQP port.
        agree: raises unless all brokers hold the same, as soon as they do.
        rows: the /status of every broker.
        logs: what the brokers have said.
        form: in which the tests send verbs.
    """

    port: int
    agree: Callable[[], object]
    rows: Callable[[], list[dict[str, Any]]]
    logs: Callable[[], str]
    form: type[DtxChannel] = DtxChannel

    def settled(self) -> None:
        """Wait until no broker has an open transaction, and the messages of no queue are handed out or locked."""
        wait_until("nothing is open", lambda: not self._open_work(), SETTLED_S)

    def _open_work(self) -> list[Any]:
        rows = self.rows()
        busy = [queue for row in rows for queue in row["queues"] if queue["acquired"] or queue["uncommitted"]]
        return busy + [row["transactions"] for row in rows if any(row["transactions"].values())]


@contextlib.contextmanager
def one_broker(folder: Path) -> Iterator[Place]:
    broker = BrokerProcess(folder)
    _with_vhosts(broker.config)
    broker.start()
    try:
        yield Place(broker.port, lambda: None, lambda: [broker.status()], broker.log_text)
        assert broker.process is not None
        assert broker.process.poll() is None, f"the broker ended with {broker.process.returncode}: {broker.log_text()}"
        assert broker.stop() == 0, broker.log_text()
        assert "Traceback" not in broker.log_text(), broker.log_text()
    finally:
        if broker.process is not None and broker.process.poll() is None:
            broker.kill()
        remove_journals(folder)


class GroupWithVhosts(Group):
    """Brokers with another vhost and the users of this file."""

    def __init__(self, folder: Path, extra: str = "", *, brokers: int = 3) -> None:
        super().__init__(folder, extra, brokers=brokers)
        for broker in self.brokers.values():
            _with_vhosts(broker.config)


@contextlib.contextmanager
def _group(folder: Path, brokers: int) -> Iterator[Place]:
    with running_group(folder, brokers=brokers, group_class=GroupWithVhosts) as group:
        yield Place(group.primary().port, group.agree, lambda: list(group.rows().values()), group.logs)


def group_of_one(folder: Path) -> contextlib.AbstractContextManager[Place]:
    """The plugin, with no backup to ask."""
    return _group(folder, 1)


def group_of_three(folder: Path) -> contextlib.AbstractContextManager[Place]:
    return _group(folder, 3)
