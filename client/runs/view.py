"""The common part of the views of `demo` and `stress`: lines with the time, and a picture that is drawn over itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from understudy.client.runs.broker_group import BrokerView
from understudy.client.runs.tally import Tally
from understudy.client.verdicts.evidence.client_log import Event

REFRESH_S: Final = 0.25
_Brokers_contra = TypeVar("_Brokers_contra", contravariant=True)


class RunView(Protocol[_Brokers_contra]):
    """Told what happens; shows it."""

    def phase(self, text: str) -> None:
        """Show the step that the run has reached."""

    def changed(self, view: BrokerView) -> None:
        """A broker has another status."""

    async def run(self, brokers: _Brokers_contra, tally: Tally) -> None:
        """Show what goes on, until cancelled."""


class TimedLines:
    """Lines, for files and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()

    def line(self, text: str) -> None:
        self._console.print(
            f"{time.monotonic() - self._started_s:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True
        )

    def phase(self, text: str) -> None:
        self.line(text)


class Picture:
    """A picture that is drawn over itself while clients work; lines before and after that."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()
        self._phase = ""
        self._drawn = False

    def phase(self, text: str) -> None:
        self._phase = text
        if not self._drawn:
            self._console.print(Text(f"{time.monotonic() - self._started_s:6.1f} s  {text}"))

    def changed(self, view: BrokerView) -> None:
        """Drawn at the next refresh."""

    def title(self, program: str) -> Text:
        return Text(f"{program}  {time.monotonic() - self._started_s:5.1f} s  {self._phase}", style="bold")

    async def draw(self, picture: Callable[[], Group]) -> None:
        """Draw what ``picture`` makes, again and again, until cancelled."""
        self._drawn = True
        try:
            with Live(console=self._console, auto_refresh=False, transient=True) as live:
                while True:
                    live.update(picture(), refresh=True)
                    await asyncio.sleep(REFRESH_S)
        finally:
            self._drawn = False


def progress(tally: Tally) -> str:
    """The work of the clients so far, in a line."""
    counts = tally.counts
    committed, rolled_back, unknown = (counts[each] for each in (Event.COMMITTED, Event.ROLLED_BACK, Event.UNKNOWN))
    return (
        f"{tally.rate(time.monotonic()):.0f} commits/s; {committed:,} committed, {rolled_back:,} rolled back, "
        f"{unknown:,} unknown, {tally.asking} being asked for"
    )
