"""A worker in a child process, which ends itself with SIGKILL at a named point: nothing of Python runs after it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Final, Protocol

import attrs

from understudy.client.stages.watching.points import Point

TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.01
IDLE_S: Final = 2.0
"""A worker that has had nothing to do for so long does not pass the point any more: marking is late by 0.2 s."""


@attrs.frozen
class Crash:
    """A point, and the stage at which it counts; "": at any."""

    point: Point
    stage: str


class Runs(Protocol):
    """A worker."""

    async def run(self) -> None: ...


def crashed(crash: Crash, worker: Callable[[Callable[[Point, str], None]], Runs], is_idle: Callable[[], bool]) -> None:
    """Run a worker in a child until it has killed itself.

    Args:
        crash: where.
        worker: makes it; called in the child, with what is called at each point.
        is_idle: nothing is left to do.

    Raises:
        AssertionError: it has not passed the point; names it.
    """
    what = f"point {crash.point.value!r}" + (f" of stage {crash.stage!r}" if crash.stage else "")

    def at_point(passed: Point, stage: str) -> None:
        if passed is crash.point and crash.stage in {"", stage}:
            os.kill(os.getpid(), signal.SIGKILL)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the test, idle: the child uses none of them
        child = os.fork()
    if child == 0:
        _run(lambda: worker(at_point))
    end_s, idle_since_s = time.monotonic() + TIMEOUT_S, None
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        now_s = time.monotonic()
        idle_since_s = (idle_since_s or now_s) if is_idle() else None
        if now_s > end_s or (idle_since_s is not None and now_s - idle_since_s > IDLE_S):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"{what} was not passed, and nothing is left to do")
        time.sleep(POLL_S)
    if (code := os.waitstatus_to_exitcode(ended[1])) != -signal.SIGKILL:
        raise AssertionError(f"{what} was not passed: the worker ended with code {code}; its error is on stderr")


def _run(worker: Callable[[], Runs]) -> None:
    """In the child: run the worker; never returns."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        asyncio.run(worker().run())
        code = 0
    except BaseException:  # noqa: BLE001  # the child must not come back into the test
        traceback.print_exc()
    finally:
        os._exit(code)
