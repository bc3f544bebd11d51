"""Configuration and roles that a broker hands to its outlet, and when."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from understudy.broker.config import loading, structure
from understudy.observers.edge.side_process import LOOK_MS
from understudy.observers.outlet.edge.plugin import OutletPlugin, job_line

TEXT = """
[broker]
data = "there"
[plugins]
outlet = true
[kafka]
hosts = ["k1:9092", "k2:9092"]
sasl = "PLAIN"
user = "u"
password_file = "secret"
[kafka.tls]
ca = "ca.pem"
[outlet]
plain = false
transaction_timeout_s = 20
[[outlet.rules]]
queues = "//a*"
topic = "a.{queue}"
"""


def test_the_process_has_the_configuration_of_its_broker() -> None:
    config = loading.parse(TEXT, base=Path("/etc/understudy"))
    line = job_line(config)
    assert line.count(b"\n") == 1
    found = msgspec.json.decode(line, type=dict[str, Any])
    assert found.pop("data") == "/etc/understudy/there"
    again = structure(found, file="the pipe")
    assert (again.kafka, again.outlet) == (config.kafka, config.outlet)
    plain = loading.parse('[kafka]\nhosts = ["k:1"]\n')
    found = msgspec.json.decode(job_line(plain), type=dict[str, Any])
    found.pop("data")
    assert structure(found).outlet == plain.outlet


def test_the_process_hears_who_leads_and_ends_with_the_plugin(tmp_path: Path, monkeypatch: Any) -> None:
    """A process that writes down what it hears stands for the outlet."""
    heard = tmp_path / "heard"
    program = f"""import sys
with open({str(heard)!r}, "a") as file:
    for line in sys.stdin:
        file.write(line)
        file.flush()
    file.write("end")
"""
    script = tmp_path / "listen.py"
    script.write_text(program, encoding="utf-8")
    plugin = OutletPlugin(loading.parse(TEXT, base=tmp_path))
    plugin._side._command = [sys.executable, str(script)]
    plugin.leading_changed(True)
    for now_ms in (1, 1 + LOOK_MS):
        plugin.tick(now_ms)
    process = plugin._side._process
    assert process is not None
    assert plugin.status()["pid"] == process.pid
    assert plugin.status()["sends"] is True
    plugin.leading_changed(False)
    asyncio.run(plugin.stop())
    deadline = time.monotonic() + 60
    while "end" not in (heard.read_text() if heard.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lines = heard.read_text().splitlines()
    assert lines[0] + "\n" == job_line(plugin.config).decode()
    assert lines[1:] == ["lead", "stand by", "end"]
    assert process.wait(60) == 0


def test_what_the_process_says_is_on_the_metrics_page(tmp_path: Path) -> None:
    """Two processes, one after the other, stand for an outlet that is fenced: counts go on, and the page says that it is down."""
    told = b'{"state":"waiting","transactions":3,"records":7,"lag_transactions":2,"lag_bytes":900,"rests_s":4.5}\n'
    script = tmp_path / "talk.py"
    script.write_text(
        f"import sys, time\nsys.stdout.buffer.write(b'no line\\n' + {told!r})\nsys.stdout.flush()\n"
        f"sys.stdin.readline(), sys.stdin.readline(), sys.stdin.readline()\nsys.exit(3)\n",
        encoding="utf-8",
    )
    plugin = OutletPlugin(loading.parse(TEXT, base=tmp_path))
    plugin._side._command = [sys.executable, str(script)]
    now_ms = 1

    def until(name: str, value: float) -> None:
        nonlocal now_ms
        deadline = time.monotonic() + 60
        while shown(plugin).get(name) != value:
            assert time.monotonic() < deadline, shown(plugin)
            now_ms += LOOK_MS
            plugin.tick(now_ms)
            time.sleep(0.01)

    until("understudy_outlet_state waiting", 1)
    found = shown(plugin)
    assert found["understudy_outlet_transactions_total"] == 3
    assert (found["understudy_outlet_lag_transactions"], found["understudy_outlet_lag_bytes"]) == (2, 900)
    assert found["understudy_outlet_rests_seconds"] == 4.5
    assert plugin.status()["progress"]["state"] == "waiting"
    plugin.leading_changed(True)  # it reads a third line, and ends
    until("understudy_outlet_fenced_total", 1)
    assert shown(plugin)["understudy_outlet_state down"] == 1
    assert "understudy_outlet_lag_bytes" not in shown(plugin)
    until("understudy_outlet_records_total", 14)
    assert shown(plugin)["understudy_outlet_failures_total"] == 0
    process = plugin._side._process
    assert process is not None
    asyncio.run(plugin.stop())
    process.wait(60)


def shown(plugin: OutletPlugin) -> dict[str, float]:
    """Value by name and labels."""
    return {
        " ".join((family.name, *sample.labels)): float(sample.value)  # type: ignore[arg-type]  # there is no histogram
        for family in plugin.metrics()
        for sample in family.samples
    }
