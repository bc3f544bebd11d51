"""The use of ``[transactions]`` in a broker process: the choice for its cores, the check of a swap, the words for its pages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import structlog

from understudy.broker.config import Config, milliseconds
from understudy.broker.coordinators import CoordinatorChoice, NullCoordinator, find_coordinator
from understudy.broker.core.commits.coordinator_swap import check_swap
from understudy.broker.core.commits.transactions import Transactions
from understudy.broker.core.state import BrokerState
from understudy.broker.plugin_api.plugin import PluginError
from understudy.broker.server.files.coordinator_file import read_coordinator, write_coordinator
from understudy.broker.server.sockets.stranger_log import StrangerLog
from understudy.broker.server.web.time_text import time_text
from understudy.broker.transactions.commit_order import HookError

_log: Final = structlog.get_logger()


def choice_of(config: Config, extended: bool) -> CoordinatorChoice:
    """The choice of ``[transactions]``; ``extended``: a plugin extends the core, and takes part in transactions.

    Raises:
        PluginError: there is no such coordinator, it does not fit, or there is something to coordinate and it does nothing.
    """
    wanted = config.transactions
    coordinator = find_coordinator(wanted.coordinator)
    if extended and issubclass(coordinator, NullCoordinator):
        raise PluginError(
            f"transactions.coordinator is {wanted.coordinator!r}, which coordinates nothing, but two participants need two "
            "phases: the queues, and the plugin that extends the core"
        )
    bound_ms = milliseconds(wanted.max_withheld_ms / 1_000)
    return CoordinatorChoice(wanted.coordinator, coordinator, dict(wanted.options), bound_ms)


async def take_over(state: BrokerState, directory: Path, choice: CoordinatorChoice) -> None:
    """The core that was recovered is about to run under ``choice``.

    Raises:
        CoordinatorSwapError: another coordinator has left something undecided.
        CoordinatorFileError, OSError: it cannot be known which coordinator was there before, or be written.
    """
    before = await asyncio.to_thread(read_coordinator, directory)
    check_swap(state, before, choice.name)
    if before != choice.name:
        await asyncio.to_thread(write_coordinator, directory, choice.name)
        _log.info("another coordinator takes over", before=before, coordinator=choice.name)


class HookErrorLog:
    """Logs what hooks raise: ten lines a minute of each hook, then a count."""

    def __init__(self) -> None:
        self._lines = StrangerLog(_log)

    def told(self, error: HookError) -> None:
        self._lines.warning(f"coordinator: {error.hook} failed", error=error.error)


def coordinator_row(transactions: Transactions) -> dict[str, Any]:
    """The coordinator's row of ``/status``."""
    order, newest = transactions.coordinator, transactions.coordinator.newest_error
    return {
        "configured": transactions.choice.name,
        "in_force": transactions.in_force,
        "participants": transactions.participants(),
        "health": "failing" if order.errors else "ok",
        "withheld": max(0, order.waiting() - order.fresh()),
        "forced": order.forced,
        "groups": {trigger.value: number for trigger, number in order.triggers.items()},
        "errors": order.errors,
        "newest_error": None
        if newest is None
        else {"hook": newest.hook, "error": newest.error, "time": time_text(newest.wall_ms)},
    }
