"""``understudy stages list`` and ``understudy stages show``."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import attrs
import typer

from understudy.client.stages.application.application import Stages
from understudy.client.stages.commands.connection import connected
from understudy.client.stages.commands.run import Name, fail, load
from understudy.client.stages.core import envelope as headers
from understudy.client.stages.dead_letters.options import Json
from understudy.client.stages.dead_letters.report import one_line, printable, time_of
from understudy.client.stages.errors import StagesError

if TYPE_CHECKING:  # needs aio-pika
    from understudy.client.stages.looking.findings import Passage

T = TypeVar("T")


def list_stages(application: Name, as_json: Json = False) -> None:
    """List stages with what waits in their queues, and their dead letters.

    Exit codes: 0 listed; 1 the broker or the database does not answer; 2 there is no such application.
    """
    stages = load(application)
    found = _run(stages, lambda findings, connection: findings.list_of(stages, connection))
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    rows = [("STAGE", "READY", "CONSUMERS", "DEAD", "ONCE", "FLOWS")]
    for each in found["stages"]:
        numbers = ("-" if each[key] < 0 else str(each[key]) for key in ("ready", "consumers", "dead_letters"))
        rows.append((each["stage"], *numbers, "yes" if each["once"] else "no", " ".join(each["flows"])))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        typer.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    if found["outbox"] is not None:
        typer.echo(f"outbox: {found['outbox']} messages")


def show_flow(
    application: Name,
    flow_id: Annotated[
        str, typer.Argument(metavar="FLOW_ID", help="As flow.send() returns it, and log lines have it.")
    ],
    as_json: Json = False,
) -> None:
    """Show where a passage through a flow is and has been; a finished one too, as long as the inbox keeps its messages.

    Exit codes: 0 shown; 1 nothing is known of it, or broker or database do not answer; 2 there is no such application.
    """
    stages = load(application)
    found: Passage = _run(stages, lambda findings, connection: findings.passage_of(stages, connection, flow_id))
    if as_json:
        typer.echo(json.dumps(_object(found), indent=1))
    else:
        for line in lines_of(found):
            typer.echo(line)
    if not (found.passed or found.letters or found.outbox or found.parked):
        fail(f"nothing is known of passage {flow_id!r}: stages without once=True keep no inbox", 1)


def lines_of(found: Passage) -> list[str]:
    """A passage for people."""
    lines = [f"flow {found.flow or 'unknown'}, passage {found.flow_id}"]
    lines += [
        f"{time_of(each.at_ms, exact=True)}  {each.stage}  processed message {each.message_id}" for each in found.passed
    ]
    lines += [f"in the outbox, to be sent: a message for {stage}" for stage in found.outbox]
    lines += [f"waits behind an older message of its key: a message for {stage}" for stage in found.parked]
    for letter in found.letters:
        at, where = time_of(letter.number(headers.LAST_FAILED), exact=True), letter.delivery.text(headers.STAGE)
        why = one_line(f"{letter.exception}: {letter.text}")
        lines.append(f"{at}  {where}  dead letter {letter.delivery.id}: {why}")
    if found.next and not found.outbox and not found.parked:
        lines.append(
            f"next: {found.next}: its message waits, is in hand, or was not sent, because the flow rests or has ended"
        )
    if found.unknown:
        lines.append(f"{found.unknown} keeps no inbox (once=True): what follows is not known")
    if found.finished:
        lines.append("finished")
    return [*map(printable, lines)]


def _object(found: Passage) -> dict[str, Any]:
    letters = [
        {
            "id": each.delivery.id,
            "stage": each.delivery.text(headers.STAGE),
            "exception": each.exception,
            "text": each.text,
        }
        for each in found.letters
    ]
    plain = attrs.asdict(found, filter=lambda attribute, _: attribute.name != "letters")
    return plain | {"letters": letters}


def _run(stages: Stages, work: Callable[[Any, Any], Coroutine[Any, Any, T]]) -> T:
    try:
        from understudy.client.stages.looking import findings  # noqa: PLC0415  # the extra of this command alone
    except ImportError as error:
        fail(f"{error}: pip install 'understudy[stages]'", 1)
    try:
        return connected(stages.addresses, f"{stages.name}, understudy stages", partial(work, findings))
    except StagesError as error:
        fail(str(error), 1)
    except Exception as error:  # noqa: BLE001  # of the database's library: a missing table among them
        where = stages.database.address if stages.database is not None else "the database"
        fail(f"{where}: {error} (a worker makes the tables when it starts)", 1)
