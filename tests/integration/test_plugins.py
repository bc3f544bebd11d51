"""A passive plugin of another package beside HA: the example of docs/plugins.md, as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.broker_process import wait_until
from tests.stress.group import Group, running_group
from understudy.broker.plugin import ENTRY_POINT_GROUP

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
NAMED = pika.BasicProperties(delivery_mode=2, headers={"x-understudy-tx": "a bad day"})


def install_example(folder: Path) -> Path:
    """The example of the docs as a package in a directory of its own; where it is."""
    text = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    (module,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    project = next(block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[project]" in block)
    about = tomllib.loads(project)["project"]
    (module_name,) = tomllib.loads(project)["tool"]["setuptools"]["py-modules"]
    points = "".join(f"{name} = {value}\n" for name, value in about["entry-points"][ENTRY_POINT_GROUP].items())
    distribution = f"{about['name'].replace('-', '_')}-{about['version']}"
    wheel = folder / f"{distribution}-py3-none-any.whl"  # by hand: no build backend is needed, nor found offline
    files = {
        f"{module_name}.py": module,
        f"{distribution}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n",
        f"{distribution}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{distribution}.dist-info/entry_points.txt": f"[{ENTRY_POINT_GROUP}]\n{points}",
    }
    files[f"{distribution}.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--no-index", "--target", target, wheel], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return target


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
    """What `understudy.admin` answers."""
    queue = channel.queue_declare("", exclusive=True).method.queue
    body = json.dumps({"command": command}).encode()
    channel.basic_publish("understudy.admin", "", body, pika.BasicProperties(reply_to=queue))
    answer: dict[str, Any] = json.loads(wait_until("answered", lambda: channel.basic_get(queue, auto_ack=True)[2]))
    return answer


def test_a_plugin_of_another_package_watches_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install_example(tmp_path)))
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
