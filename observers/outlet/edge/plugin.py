"""OutletPlugin: ``[plugins] outlet = true`` runs the outlet of committed transactions beside every broker; the primary's sends.

The process (`outlet.edge.process`) is told over its standard input what to do, then whether its broker leads. On its standard
output it says each second how far it is (`outlet.progress`). A backup's process sends nothing: it looks now and then how far
the primary's has come, and asks its own broker to keep what may have to be sent after a failover.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec

from understudy.broker.config import Config
from understudy.broker.plugin_api.metrics import Family
from understudy.broker.plugin_api.passive_plugin import PassivePlugin
from understudy.observers.edge.side_process import SideProcess
from understudy.observers.outlet.edge.command import FENCED
from understudy.observers.outlet.sending.progress import DOWN, OutletTotals, outlet_families

LEAD: Final = b"lead\n"
STAND_BY: Final = b"stand by\n"
MODULE: Final = "understudy.observers.outlet.edge.process"


class OutletPlugin(PassivePlugin):
    """Looks after the process."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._leads = False
        self._job = job_line(config)
        self._totals = OutletTotals()
        self._side = SideProcess("outlet", [sys.executable, "-m", MODULE], self._job + STAND_BY, talks=True)

    def leading_changed(self, leads: bool) -> None:
        self._leads = leads
        word = LEAD if leads else STAND_BY
        self._side.say_first(self._job + word)
        self._side.tell(word)

    def tick(self, now_ms: int) -> None:
        for line in self._side.heard():
            self._totals.heard(line)
        self._side.tick(now_ms)
        if not self._side.runs and self._totals.last is not None:
            self._totals.ended()

    async def stop(self) -> None:
        """Let it end."""
        self._side.close()

    def status(self) -> dict[str, Any]:
        last = self._totals.last
        progress = msgspec.to_builtins(last) if last is not None else {"state": DOWN}
        return {
            **self._side.status(),
            "sends": self._leads,
            "kafka": ",".join(self.config.kafka.hosts),
            "progress": progress,
        }

    def metrics(self) -> Iterable[Family]:
        return outlet_families(self._totals, self._side.ends, FENCED)


def job_line(config: Config) -> bytes:
    """Configuration that the process needs, on one line: paths are absolute, defaults are left out."""

    def given(attribute: attrs.Attribute[Any], value: object) -> bool:
        return value is not None and value != attribute.default

    def plain(_instance: object, _attribute: attrs.Attribute[Any] | None, value: object) -> object:
        return str(value.absolute()) if isinstance(value, Path) else value

    tables = {
        name: attrs.asdict(section, filter=given, value_serializer=plain)
        for name, section in (("kafka", config.kafka), ("outlet", config.outlet))
    }
    return msgspec.json.encode({"data": str(config.broker.data.absolute()), **tables}) + b"\n"
