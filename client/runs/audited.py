"""The audit of a run by its brokers' feeds.

``understudy feed`` and ``understudy audit`` run as child processes, as a user would run them.

A broker that ends waits for nothing, and so not for its feed. So when all brokers have ended, each feed is brought up
to the end of its journal, and then audited together with the clients' logs.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from understudy.client.runs.broker_group import understudy_command

DETAIL: Final = "messages"
FEED_TIMEOUT_S: Final = 120.0
AUDIT_TIMEOUT_S: Final = 900.0
RETRY_S: Final = 0.5
_STEP: Final = re.compile(r"audit: +\d+ s  (.*)")
_IN_USE: Final = "another feed writes to it"


class AuditError(Exception):
    """The audit could not be carried out."""


async def audited(feeds: Path, clients: Path | None, out: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """The last line of ``understudy audit --json``, parsed.

    Args:
        feeds: a directory of files a broker, up to the ends of their journals (`bring_up`).
        clients: the clients' logs, if there are any.
        out: for the table of violations.
        tell: told each step of the audit, when it begins.

    Raises:
        AuditError: the audit failed; what it said.
    """
    arguments = ["audit", "--json", "--feed", str(feeds), "--out", str(out)]
    arguments += [] if clients is None else ["--clients", str(clients)]
    code, said, told = await _run(arguments, AUDIT_TIMEOUT_S, tell)
    if code not in (0, 1, 3):
        raise AuditError(f"the audit ended with code {code}: {told[-500:].strip()}")
    verdict: dict[str, Any] = json.loads(said.splitlines()[-1])
    return verdict


def audit_text(verdict: Mapping[str, Any]) -> str:
    """For people, in a line."""
    return (
        f"{verdict['verdict']}: {verdict['transactions']:,} transactions on {verdict['brokers']} brokers,"
        f" {verdict['events']:,} events of their feeds"
    )


def audit_problems(verdict: Mapping[str, Any]) -> list[str]:
    """Faults that the audit found; empty if the run is proved."""
    found = [f"audit: {each['promise']} {each['kind']}: {each['text']}" for each in verdict["examples"]]
    return found[:5] + [f"audit: {text}" for text in verdict["missing"]]


async def bring_up(journal: Path, feed: Path) -> None:
    """Bring the feed of a broker that has ended up to the end of its journal; the one that wrote it may still be at its last file.

    Raises:
        AuditError: the feed failed; what it said.
    """
    arguments = ["feed", "--data", str(journal), "--out", str(feed)]
    until_s = asyncio.get_running_loop().time() + FEED_TIMEOUT_S
    while True:
        code, _, told = await _run(arguments, FEED_TIMEOUT_S)
        if not code:
            return
        if _IN_USE not in told or asyncio.get_running_loop().time() > until_s:
            raise AuditError(f"the feed of {journal.name} ended with code {code}: {told[-500:].strip()}")
        await asyncio.sleep(RETRY_S)


async def _run(
    arguments: Sequence[str], timeout_s: float, tell: Callable[[str], None] = lambda _: None
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; ``tell`` is given each step that stderr names."""
    process = await asyncio.create_subprocess_exec(
        understudy_command(),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(timeout_s):
            said, told, _ = await asyncio.gather(process.stdout.read(), _steps(process.stderr, tell), process.wait())
    except TimeoutError:
        raise AuditError(f"understudy {arguments[0]} was not done within {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, said.decode(errors="replace"), told


async def _steps(stream: asyncio.StreamReader, tell: Callable[[str], None]) -> str:
    """Read all lines, and tell those that name a step of the audit."""
    lines = []
    async for raw in stream:
        line = raw.decode(errors="replace")
        lines.append(line)
        if (step := _STEP.fullmatch(line.rstrip())) is not None:
            tell(f"audit: {step[1]}")
    return "".join(lines)
