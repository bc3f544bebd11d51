"""Report: dead letters as text for people, and as objects for JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.core.letter import Group, Letter

LONGEST_BODY: Final = 2_000
"""Characters of a body that are printed for people."""


def time_of(at_ms: int, *, exact: bool = False) -> str:
    """UTC, to the second, or to the millisecond if ``exact``; "unknown" for 0.

    A number that is no time, as another program may write it, stays a number.
    """
    if not at_ms:
        return "unknown"
    try:
        at = datetime.fromtimestamp(at_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03}Z" if exact else f"{at:%Y-%m-%d %H:%M:%SZ}"


def group_object(group: Group) -> dict[str, Any]:
    letter = group.sample
    return {
        "group": group.name,
        "letters": group.count,
        "stage": letter.delivery.text(headers.STAGE),
        "exception": letter.exception,
        "text": letter.text,
        "stack": letter.stack,
        "first_failed_ms": group.first_ms or None,
        "last_failed_ms": group.last_ms or None,
        "most_rounds": group.most_rounds,
        "newest": letter.delivery.id,
    }


def group_text(group: Group) -> str:
    times = f"{time_of(group.first_ms)} to {time_of(group.last_ms)}"
    rounds = f", reissued {group.most_rounds} times at most" if group.most_rounds else ""
    letter = group.sample
    return printable(
        f"  group {group.name}: {group.count:,} of {letter.exception}, stack {letter.stack or 'unknown'}\n"
        f"    {times}{rounds}\n"
        f"    newest {letter.delivery.id}: {one_line(letter.text)}\n"
    )


def letter_object(letter: Letter) -> dict[str, Any]:
    delivery = letter.delivery
    return {
        "id": delivery.id,
        "queue": letter.queue,
        "group": letter.group,
        "headers": {name: plain(value) for name, value in delivery.own_headers().items()},
        **body_object(delivery.body),
    }


def letter_text(letter: Letter) -> str:
    delivery = letter.delivery
    lines = [f"{delivery.id}  in {letter.queue}, group {letter.group}"]
    for name, value in sorted(delivery.own_headers().items()):
        time = f"  ({time_of(value)})" if name.endswith("-ms") and isinstance(value, int) else ""
        lines.append(f"  {name}: {plain(value)}{time}")
    lines.append(f"  body, {len(delivery.body):,} octets:")
    lines += [f"    {line}" for line in body_text(delivery.body).splitlines()]
    return printable("\n".join(lines) + "\n")


def change_text(before: Letter, after: Envelope) -> str:
    """The lines of headers and body in which a letter changes."""
    old = before.delivery.own_headers()
    lines = [
        f"  {name}: {plain(old.get(name))} -> {plain(after.headers.get(name))}"
        for name in sorted({*old, *after.headers})
        if old.get(name) != after.headers.get(name)
    ]
    if before.delivery.body != after.body:
        lines += ["  body before:", *(f"    {line}" for line in body_text(before.delivery.body).splitlines())]
        lines += ["  body after:", *(f"    {line}" for line in body_text(after.body).splitlines())]
    return printable("\n".join(lines) + "\n")


def body_object(body: bytes) -> dict[str, str]:
    """The whole body: as text if it is UTF-8, else as base64."""
    try:
        return {"body": body.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "encoding": "base64"}


def body_text(body: bytes) -> str:
    text = body_object(body)["body"]
    cut = f"\n({len(text) - LONGEST_BODY:,} characters more: --json prints all)" if len(text) > LONGEST_BODY else ""
    return printable(text[:LONGEST_BODY]) + cut


def printable(text: str) -> str:
    """Text without characters that move a terminal's cursor or change its colours."""
    return "".join(each if each.isprintable() or each == "\n" else f"\\x{ord(each):02x}" for each in text)


def counted(number: int, one: str, several: str = "") -> str:
    """A number with its noun."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def one_line(text: str) -> str:
    first, newline, _ = text.partition("\n")
    return printable(first) + (" ..." if newline else "")


def plain(value: Any) -> Any:
    """A header's value as JSON has it."""
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return printable(value)
    return value if isinstance(value, (int, float, bool)) or value is None else str(value)


def ids_text(ids: Sequence[str], most: int = 10) -> str:
    """The first ids, one a line."""
    more = f"  and {len(ids) - most:,} more\n" if len(ids) > most else ""
    return printable("".join(f"  {each}\n" for each in ids[:most]) + more)
