"""What a broker hands to its outlet, and when."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from understudy.broker.config import loading, structure
from understudy.observers.outlet_plugin import OutletPlugin, job_line
from understudy.observers.side_process import LOOK_MS

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
