"""``understudy status``: shows a group once, again and again, or when it is as a script expects it."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import attrs

from understudy.broker.command_line.status_text import status_text
from understudy.broker.errors import UnderstudyError
from understudy.broker.printable import escaped

EXPECTATIONS: Final = ("active", "ready")
NOT_AS_EXPECTED: Final = 3
"""The exit code; 1 is that nothing could be shown, 2 that the command was not understood."""
WATCH_EVERY_S: Final = 1.0
WAIT_STEP_S: Final = 0.2


@attrs.frozen(kw_only=True)
class Showing:
    """How to show it.

    Attributes:
        as_json: one JSON object, else text.
        watch: again every second. With ``wait``: until the group is so, or ``timeout_s`` have passed.
        expect: ``active`` or ``ready``: an exit code tells if the group is not so; "" for no expectation.
        wait: the same, and without ``watch`` nothing is shown before the group is so, or ``timeout_s`` have passed.
    """

    as_json: bool = False
    watch: bool = False
    expect: str = ""
    wait: str = ""
    timeout_s: float = 30.0


def show(look: Callable[[], dict[str, Any]], how: Showing) -> int:
    """Show what ``look`` finds; returns the exit code.

    Raises:
        UnderstudyError: nothing was found; with ``wait``, not in time either.
    """
    if how.wait:
        group = _awaited(look, how)
        if not how.watch:
            _show(group, how)
        return _judged(group, {how.expect, how.wait})
    while True:
        group = look()
        _show(group, how)
        code = _judged(group, {how.expect})
        if code or not how.watch:
            return code
        time.sleep(WATCH_EVERY_S)


def _awaited(look: Callable[[], dict[str, Any]], how: Showing) -> dict[str, Any]:
    """The group as soon as it is as waited for; as it is when the time is over. With ``watch`` each look is shown."""
    deadline = time.monotonic() + how.timeout_s
    while True:
        late = time.monotonic() >= deadline
        try:
            group = look()
            if how.watch:
                _show(group, how)
            if late or not unmet(group, how.wait):
                return group
        except UnderstudyError as error:
            if late:
                raise
            if how.watch:
                _say(str(error))
        left_s = max(0.0, deadline - time.monotonic())
        time.sleep(min(WATCH_EVERY_S, left_s) if how.watch else WAIT_STEP_S)


def _judged(group: Mapping[str, Any], expectations: Collection[str]) -> int:
    """The exit code; on stderr what is not as expected. "" expects nothing."""
    missed = [reason for expected in expectations if expected for reason in unmet(group, expected)]
    if not missed:
        return 0
    _say("not as expected: " + "; ".join(map(escaped, dict.fromkeys(missed))))
    return NOT_AS_EXPECTED


def _show(group: dict[str, Any], how: Showing) -> None:
    if how.as_json:
        _print(json.dumps(group) + "\n")
    else:
        clear = "\x1b[H\x1b[2J" if how.watch and sys.stdout.isatty() else ""
        _print(clear + status_text(group))


def _say(text: str) -> None:
    print(f"understudy: {text}", file=sys.stderr, flush=True)  # noqa: T201  # a command prints


def unmet(group: Mapping[str, Any], expected: str) -> list[str]:
    """Reasons why the group is not as expected, a line each; empty if it is.

    Args:
        group: as ``understudy status --json`` has it.
        expected: ``active``: a broker leads and serves. ``ready``: and each other broker that is known, and that no operator has
            expelled, could take over.
    """
    rows = group["brokers"]
    barred = {*(group.get("barred") or ()), *(name for row in rows for name in row.get("barred") or ())}
    serving = [row["broker"] for row in rows if row["status"] in ("active", "standalone")]
    found = [] if serving else ["no broker is active"]
    if expected == "ready":
        found += [
            f"{row['broker']} is {row['status']}" + "".join(f": {blocker}" for blocker in row["blockers"])
            for row in rows
            if row["status"] not in ("active", "standalone", "ready") and row["broker"] not in barred
        ]
    return found


def seconds(text: str) -> float:
    """A time as an option has it: seconds, or with the unit ms, s or min.

    Raises:
        ValueError: it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|min)?", text)
    if found is None:
        raise ValueError(f"{text!r} is no time, such as 30s")
    return float(found[1]) * {"ms": 0.001, "s": 1.0, "min": 60.0}[found[2] or "s"]


def _print(text: str) -> None:
    print(text, end="", flush=True)  # noqa: T201  # a command prints
