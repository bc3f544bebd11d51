"""The view of a running demo: a live table in a terminal, a line for each change elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from understudy.client.demo.figures import Kill
from understudy.client.runs.broker_group import ACTIVE, DOWN, READY, BrokerGroup, BrokerView, GroupError
from understudy.client.runs.tally import Tally
from understudy.client.runs.view import Picture, RunView, TimedLines, progress

ASK_S: Final = 1.0
PLAIN_PROGRESS_S: Final = 5.0
SHOWN_KILLS: Final = 8
_COLOURS: Final = {
    ACTIVE: "bold green",
    READY: "green",
    "catchup": "yellow",
    "recovering": "yellow",
    DOWN: "bold red",
}


class View(RunView[BrokerGroup], Protocol):
    """Told what happens; shows it."""

    def killed(self, kill: Kill) -> None:
        """A primary was killed."""


class PlainView(TimedLines):
    """Lines, for files and pipes."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._told: dict[str, str] = {}

    def changed(self, view: BrokerView) -> None:
        up = f"{view.role} {view.status}, epoch {view.epoch}"
        text = f"{view.broker} {up if view.status != DOWN else DOWN}"
        if view.role == "primary":
            text += f", in-sync {', '.join(view.in_sync)}"
        if view.status not in (READY, ACTIVE, DOWN) and view.blockers:
            text += f" ({'; '.join(view.blockers)})"
        if self._told.get(view.broker) != text:
            self._told[view.broker] = text
            self.line(text)

    def killed(self, kill: Kill) -> None:
        self.line(f"SIGKILL to {kill.broker}, primary of epoch {kill.epoch}, pid {kill.pid} ({kill.kind})")

    async def run(self, brokers: BrokerGroup, tally: Tally) -> None:
        while True:
            await asyncio.sleep(PLAIN_PROGRESS_S)
            self.line(progress(tally))


class LiveView(Picture):
    """A table that is drawn over itself while clients work; lines before and after that."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._kills: list[tuple[Kill, float | None]] = []
        self._behind: dict[str, Any] = {}

    def killed(self, kill: Kill) -> None:
        self._kills.append((kill, None))

    async def run(self, brokers: BrokerGroup, tally: Tally) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ask(brokers))
            await self.draw(lambda: self._picture(brokers, tally))

    async def _ask(self, group: BrokerGroup) -> None:
        """How far behind each backup is, which the primary knows and does not announce."""
        while True:
            await asyncio.sleep(ASK_S)
            primary = group.primary
            try:
                self._behind = (await group.page(primary.broker, "/status")).get("lag", {}) if primary else {}
            except GroupError:
                self._behind = {}

    def _picture(self, group: BrokerGroup, tally: Tally) -> Group:
        if self._kills and self._kills[-1][1] is None:
            self._kills[-1] = (self._kills[-1][0], tally.failover_s)
        return Group(self.title("understudy demo"), self._brokers(group), Text(progress(tally)), *self._kill_lines())

    def _brokers(self, group: BrokerGroup) -> Table:
        table = Table(
            "broker", "pid", "port", "role", "status", "epoch", "in sync", "behind", "what keeps it from being ready"
        )
        primary = group.primary
        in_sync = primary.in_sync if primary is not None else ()
        for _, view in sorted(group.views.items()):
            behind = self._behind.get(view.broker, {}).get("records", "")
            table.add_row(
                view.broker,
                str(view.pid or ""),
                str(view.port or ""),
                view.role,
                Text(view.status, style=_COLOURS.get(view.status, "")),
                str(view.epoch or ""),
                "yes" if view.broker in in_sync else "",
                str(behind),
                "; ".join(view.blockers),
            )
        return table

    def _kill_lines(self) -> list[Text]:
        return [
            Text(
                f"SIGKILL {kill.broker}, epoch {kill.epoch}, {kill.kind.replace('_', ' ')}: "
                + ("waiting for the next commit" if served is None else f"commits again after {1000 * served:.0f} ms"),
                style="red" if served is None else "",
            )
            for kill, served in self._kills[-SHOWN_KILLS:]
        ]


def make_view(console: Console) -> PlainView | LiveView:
    """Lines, if nobody watches."""
    return LiveView(console) if console.is_terminal else PlainView(console)
