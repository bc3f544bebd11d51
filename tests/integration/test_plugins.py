"""A passive plugin of another package beside HA: the example of docs/plugins.md, as it stands there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.broker_process import wait_until
from tests.integration.example_package import blocks, install, project_of
from tests.stress.group import Group, running_group

pytestmark = pytest.mark.integration

NAMED = pika.BasicProperties(delivery_mode=2, headers={"x-understudy-tx": "a bad day"})


class WatchedGroup(Group):
    """Each broker has the plugin of the example."""

    def __init__(self, folder: Path, extra: str = "", *, brokers: int = 3) -> None:
        super().__init__(folder, extra, brokers=brokers)
        for broker in self.brokers.values():
            text = broker.config.read_text(encoding="utf-8")
            changed = text.replace("[plugins]\n", "[plugins]\naudit = true\n", 1)
            assert changed != text
            broker.config.write_text(changed, encoding="utf-8")


def shown(group: Group) -> list[dict[str, Any]]:
    return [row["plugins"]["audit"] for row in group.rows().values()]


def ask(channel: Any, command: str) -> dict[str, Any]:
    """The answer of `understudy.admin`."""
    queue = channel.queue_declare("", exclusive=True).method.queue
    body = json.dumps({"command": command}).encode()
    channel.basic_publish("understudy.admin", "", body, pika.BasicProperties(reply_to=queue))
    answer: dict[str, Any] = json.loads(wait_until("answered", lambda: channel.basic_get(queue, auto_ack=True)[2]))
    return answer


def test_a_plugin_of_another_package_watches_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install(tmp_path, project_of("plugins.md"), blocks("plugins.md", "python"))))
    with running_group(tmp_path / "group", brokers=2, group_class=WatchedGroup) as group:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", group.primary().port))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        for properties in (pika.BasicProperties(delivery_mode=2), NAMED):
            channel.basic_publish("", "q", b"x", properties)
            channel.tx_commit()
        wait_until("all brokers show it", lambda: all(row["messages"] == {"/ q": 2} for row in shown(group)))
        assert all(row["errors"] == 1 for row in shown(group))
        assert all("the audit stumbles" in row["newest_error"]["error"] for row in shown(group))
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"
        assert sorted(row["deliveries"] for row in shown(group)) == [0, 1]
        plain = connection.channel()
        assert "audit-clear" in ask(plain, "status")["commands"]
        assert ask(plain, "audit-clear") == {"cleared": True}
        assert [row["messages"] for row in shown(group)].count({}) == 1, "of the broker that was asked"
        group.agree()
        connection.close()
