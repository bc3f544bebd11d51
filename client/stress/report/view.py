"""The view of a stress run: a live table in a terminal, a line for each change elsewhere."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from understudy.client.demo.broker_group import ACTIVE, DOWN, READY, BrokerView
from understudy.client.demo.tally import Tally
from understudy.client.stress.faults.conductor import Fault
from understudy.client.stress.faults.watch import SILENT, Watch
from understudy.client.verdicts.client_log import Event

REFRESH_S: Final = 0.25
PLAIN_PROGRESS_S: Final = 10.0
SHOWN_FAULTS: Final = 10
_COLOURS: Final = {ACTIVE: "bold green", READY: "green", DOWN: "bold red", SILENT: "magenta"}


class View(Protocol):
    """Told what happens; shows it."""

    def phase(self, text: str) -> None:
        """Show the step that the run has reached."""

    def changed(self, view: BrokerView) -> None:
        """A broker has another status."""

    def struck(self, fault: Fault) -> None:
        """A fault is healed."""

    async def run(self, watch: Watch, tally: Tally) -> None:
        """Show what goes on, until cancelled."""


class PlainView:
    """Lines, for files and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()

    def _line(self, text: str) -> None:
        self._console.print(
            f"{time.monotonic() - self._started_s:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True
        )

    def phase(self, text: str) -> None:
        self._line(text)

    def changed(self, view: BrokerView) -> None:
        """Said with the progress."""

    def struck(self, fault: Fault) -> None:
        self._line(_fault_line(fault))

    async def run(self, watch: Watch, tally: Tally) -> None:
        while True:
            await asyncio.sleep(PLAIN_PROGRESS_S)
            self._line(f"{_progress(tally)}; {watch.describe()}")


class LiveView:
    """A table that is drawn over itself while clients work; lines before and after that."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()
        self._phase = ""
        self._drawn = False
        self._faults: list[Fault] = []

    def phase(self, text: str) -> None:
        self._phase = text
        if not self._drawn:
            self._console.print(Text(f"{time.monotonic() - self._started_s:6.1f} s  {text}"))

    def changed(self, view: BrokerView) -> None:
        """Drawn at the next refresh."""

    def struck(self, fault: Fault) -> None:
        self._faults.append(fault)

    async def run(self, watch: Watch, tally: Tally) -> None:
        self._drawn = True
        try:
            await self._draw(watch, tally)
        finally:
            self._drawn = False

    async def _draw(self, watch: Watch, tally: Tally) -> None:
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(self._picture(watch, tally), refresh=True)
                await asyncio.sleep(REFRESH_S)

    def _picture(self, watch: Watch, tally: Tally) -> Group:
        title = Text(f"stress  {time.monotonic() - self._started_s:5.1f} s  {self._phase}", style="bold")
        table = Table("broker", "pid", "role", "status", "epoch", "what keeps it from being ready")
        for _, view in sorted(watch.views.items()):
            status = Text(view.status, style=_COLOURS.get(view.status, "yellow"))
            table.add_row(
                view.broker, str(view.pid or ""), view.role, status, str(view.epoch or ""), "; ".join(view.blockers)
            )
        lines = [Text(_fault_line(fault)) for fault in self._faults[-SHOWN_FAULTS:]]
        return Group(title, table, Text(_progress(tally)), *lines)


def make_view(console: Console) -> PlainView | LiveView:
    """Lines, if no person watches."""
    return LiveView(console) if console.is_terminal else PlainView(console)


def _fault_line(fault: Fault) -> str:
    held_s = fault.healed_s - fault.began_s
    return f"{fault.number:4}  {fault.kind} of {', '.join(fault.targets)}, {held_s:.1f} s" + (
        ", a broker not ready" if fault.early else ""
    )


def _progress(tally: Tally) -> str:
    counts = tally.counts
    committed, rolled_back, unknown = (counts[each] for each in (Event.COMMITTED, Event.ROLLED_BACK, Event.UNKNOWN))
    return (
        f"{tally.rate(time.monotonic()):.0f} commits/s; {committed:,} committed, {rolled_back:,} rolled back, "
        f"{unknown:,} unknown, {tally.asking} being asked for"
    )
