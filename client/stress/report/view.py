"""The view of a stress run: a live table in a terminal, a line for each change elsewhere."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from understudy.client.runs.broker_group import ACTIVE, DOWN, READY, BrokerView
from understudy.client.runs.tally import Tally
from understudy.client.runs.view import Picture, RunView, TimedLines, progress
from understudy.client.stress.faults.conductor import Fault
from understudy.client.stress.faults.watch import SILENT, Watch

PLAIN_PROGRESS_S: Final = 10.0
SHOWN_FAULTS: Final = 10
_COLOURS: Final = {ACTIVE: "bold green", READY: "green", DOWN: "bold red", SILENT: "magenta"}


class View(RunView[Watch], Protocol):
    """Told what happens; shows it."""

    def struck(self, fault: Fault) -> None:
        """A fault is healed."""


class PlainView(TimedLines):
    """Lines, for files and pipes."""

    def changed(self, view: BrokerView) -> None:
        """Said with the progress."""

    def struck(self, fault: Fault) -> None:
        self.line(_fault_line(fault))

    async def run(self, brokers: Watch, tally: Tally) -> None:
        while True:
            await asyncio.sleep(PLAIN_PROGRESS_S)
            self.line(f"{progress(tally)}; {brokers.describe()}")


class LiveView(Picture):
    """A table that is drawn over itself while clients work; lines before and after that."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._faults: list[Fault] = []

    def struck(self, fault: Fault) -> None:
        self._faults.append(fault)

    async def run(self, brokers: Watch, tally: Tally) -> None:
        await self.draw(lambda: self._picture(brokers, tally))

    def _picture(self, watch: Watch, tally: Tally) -> Group:
        table = Table("broker", "pid", "role", "status", "epoch", "what keeps it from being ready")
        for _, view in sorted(watch.views.items()):
            status = Text(view.status, style=_COLOURS.get(view.status, "yellow"))
            table.add_row(
                view.broker, str(view.pid or ""), view.role, status, str(view.epoch or ""), "; ".join(view.blockers)
            )
        lines = [Text(_fault_line(fault)) for fault in self._faults[-SHOWN_FAULTS:]]
        return Group(self.title("stress"), table, Text(progress(tally)), *lines)


def make_view(console: Console) -> PlainView | LiveView:
    """Lines, if no person watches."""
    return LiveView(console) if console.is_terminal else PlainView(console)


def _fault_line(fault: Fault) -> str:
    held_s = fault.healed_s - fault.began_s
    return f"{fault.number:4}  {fault.kind} of {', '.join(fault.targets)}, {held_s:.1f} s" + (
        ", a broker not ready" if fault.early else ""
    )
