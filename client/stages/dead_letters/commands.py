"""``understudy dlq``: list, show, reissue, edit, purge, records."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import attrs
import typer

from understudy.client.stages.commands.run import load
from understudy.client.stages.core.letter import RECORDS, Action, Letter, Wanted, grouped
from understudy.client.stages.dead_letters import options, report
from understudy.client.stages.dead_letters.place import Place
from understudy.client.stages.dead_letters.running import (
    Progress,
    action_of,
    attempt,
    check_installed,
    fail,
    letters_of,
    print_json,
    run_with,
    tell_dry,
)
from understudy.client.stages.errors import ConfigurationError, StagesError

DEFAULT_RATE: Final = 100.0
LARGEST_NUMBER: Final = (1 << 63) - 1


def list_letters(
    application: options.Application = "",
    broker: options.Broker = None,
    queue: options.Queue = None,
    stage: options.Stage = None,
    limit: options.Limit = None,
    as_json: options.Json = False,
) -> None:
    """List dead letters by their exception and stack."""
    place = _place(application, broker, queue, stage)
    found = []
    for name in place.queues:
        letters, count = letters_of(place, name, limit, bodies=False)
        found.append({"queue": name, "letters": count, "looked_at": len(letters), "groups": grouped(letters)})
    if as_json:
        print_json({"queues": [each | {"groups": [*map(report.group_object, each["groups"])]} for each in found]})  # type: ignore[call-overload]
        return
    for each in found:
        groups: Any = each["groups"]
        seen = f"; the first {each['looked_at']:,}:" if each["looked_at"] != each["letters"] else ""
        typer.echo(f"{each['queue']}: {each['letters']:,} dead letters{seen}")
        for group in groups:
            typer.echo(report.group_text(group), nl=False)


def show(
    application: options.Application = "",
    broker: options.Broker = None,
    queue: options.Queue = None,
    stage: options.Stage = None,
    id_: options.Id = None,
    group: options.Group = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Show so many letters.")] = 10,
    as_json: options.Json = False,
) -> None:
    """Show dead letters: their headers and bodies. Without --id and --group: the first ones."""
    place = _place(application, broker, queue, stage)
    wanted = _wanted(id_, group, everything=not id_ and not group)
    found: list[Letter] = []
    for name in place.queues:
        # Without a choice the first letters are enough, and need not be looked for.
        letters, _ = letters_of(place, name, most if wanted.everything else None)
        found += [each for each in letters if wanted.has(each)]
    if as_json:
        print_json({"letters": [report.letter_object(each) for each in found[:most]], "found": len(found)})
    else:
        for each in found[:most]:
            typer.echo(report.letter_text(each))
        if len(found) > most:
            typer.echo(f"{len(found) - most:,} letters more: --most shows them")
    if not found and not wanted.everything:
        fail(f"{_places(place)}: no such letter", 1)


def reissue(
    application: options.Application = "",
    broker: options.Broker = None,
    queue: options.Queue = None,
    stage: options.Stage = None,
    id_: options.Id = None,
    group: options.Group = None,
    everything: options.All = False,
    to: Annotated[str, typer.Option("--to", help="The queue to put them into; default: that of their stage.")] = "",
    force_again: Annotated[
        bool,
        typer.Option("--force-again", help="Stages with once=True process them although they have done so before."),
    ] = False,
    rate: options.Rate = DEFAULT_RATE,
    limit: options.Limit = None,
    by: options.By = "",
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Give dead letters to their stage again, under their ids, for a new round of attempts.

    Each batch is one transaction of the broker: its messages leave the dead-letter queue and enter that of the stage.
    """
    place, action = _place(application, broker, queue, stage), action_of(by)
    wanted = _wanted(id_, group, everything=everything)
    targets = {name: _target(place, name, to) for name in place.queues}

    def job_of(name: str) -> dict[str, Any]:
        return {
            "verb": "reissue",
            "make": lambda letter: letter.reissued(targets[name], action, again=force_again),
            "told": {"to": targets[name], "force_again": force_again},
        }

    _act(place, wanted, action, job_of, rate=rate, limit=limit, yes=yes, as_json=as_json)


def purge(
    application: options.Application = "",
    broker: options.Broker = None,
    queue: options.Queue = None,
    stage: options.Stage = None,
    id_: options.Id = None,
    group: options.Group = None,
    everything: options.All = False,
    rate: options.Rate = DEFAULT_RATE,
    limit: options.Limit = None,
    by: options.By = "",
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Delete dead letters for good. `dlq show --json` keeps a copy before."""
    place, action = _place(application, broker, queue, stage), action_of(by)
    wanted = _wanted(id_, group, everything=everything)
    _act(
        place, wanted, action, lambda _: {"verb": "purge", "make": Letter.purged},
        rate=rate, limit=limit, yes=yes, as_json=as_json,
    )  # fmt: skip


def edit(
    id_: Annotated[str, typer.Option("--id", help="The message id of the letter.")],
    application: options.Application = "",
    broker: options.Broker = None,
    queue: options.Queue = None,
    stage: options.Stage = None,
    body: Annotated[str, typer.Option("--body", help="A file with the new body; - reads it from standard input.")] = "",
    header: Annotated[
        list[str] | None, typer.Option("--header", help="NAME=TEXT, or NAME:=JSON for a number or a truth value.")
    ] = None,
    drop_header: Annotated[
        list[str] | None, typer.Option("--drop-header", help="NAME of a header to leave out.")
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Also if the stage of the application cannot read the body.")
    ] = False,
    by: options.By = "",
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Change the body or headers of one dead letter. It keeps its id, and moves to the end of its queue."""
    place, action = _place(application, broker, queue, stage), action_of(by)
    if not body and not header and not drop_header:
        fail("give --body, --header or --drop-header: nothing is to be changed", 2)
    put = dict(_header(each) for each in header or ())
    octets = _octets(body)
    name = _queue_of(place, id_)
    if octets is not None and not unchecked:
        try:
            place.check_body(name, octets)
        except ConfigurationError as error:
            fail(str(error), 1)

    def change(letter: Letter) -> Any:
        return letter.edited(action, body=octets, put=put, drop=drop_header or ())

    async def work(connection: Any) -> Any:
        from understudy.client.stages.dead_letters.work import edit as edit_letter  # noqa: PLC0415  # needs aio-pika

        return await edit_letter(connection, name, id_, change, action, dry=not yes)

    before, after = run_with(place, work)
    if as_json:
        told = {
            "id": id_,
            "queue": name,
            "done": yes,
            "headers": {k: report.plain(v) for k, v in after.headers.items()},
        }
        print_json(told | report.body_object(after.body))
        return
    typer.echo(
        f"{id_} in {name} {'is changed' if yes else 'would change'}:\n{report.change_text(before, after)}", nl=False
    )
    tell_dry(yes)


def records(
    application: options.Application = "",
    broker: options.Broker = None,
    most: Annotated[int, typer.Option("--most", min=1, help="The last so many.")] = 20,
    as_json: options.Json = False,
) -> None:
    """Print what was done to dead letters: the last 10,000 batches are kept, in the queue stages.dead-letters.records."""
    place = attrs.evolve(_place(application, broker, [RECORDS], None), named=False)
    letters, _ = letters_of(place, RECORDS, None)
    found = [json.loads(each.delivery.body) for each in letters[-most:]]
    if as_json:
        print_json({"records": found})
        return
    for each in found:
        again = ", by force again" if each.get("force_again") else ""
        to = f" to {each['to']}" if "to" in each else ""
        text = f"{report.time_of(each['at_ms'])}  {each['by']}  {each['action']} of {len(each['ids'])} from {each['queue']}"
        typer.echo(report.printable(f"{text}{to}{again}"))


def _act(
    place: Place,
    wanted: Wanted,
    action: Action,
    job_of: Callable[[str], dict[str, Any]],
    *,
    rate: float,
    limit: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Reissue or purge in each queue, and print what was done, also if an error ends it."""
    if wanted == Wanted():
        fail("say which letters: --id, --group or --all", 2)
    from understudy.client.stages.dead_letters.work import Job  # noqa: PLC0415  # needs aio-pika

    results: dict[str, Any] = {}
    jobs = [
        Job(queue=name, wanted=wanted, action=action, rate=rate, limit=limit, dry=not yes, **job_of(name))
        for name in place.queues
    ]
    failure = ""
    for job in jobs:
        try:
            _do(place, job, results)
        except (StagesError, ValueError) as error:
            failure = str(error)
            break
    verb = jobs[0].verb
    if as_json:
        queues = [
            {"queue": name, "letters": len(each.ids), "batches": each.batches, "ids": each.ids}
            for name, each in results.items()
        ]
        print_json({"action": verb, "done": yes, "queues": queues, "error": failure or None})
    else:
        for name, each in results.items():
            done = f"{verb.removesuffix('e')}ed" if yes else f"would {verb}"
            batches = f" in {report.counted(each.batches, 'batch', 'batches')}" if yes else ""
            typer.echo(f"{name}: {done} {report.counted(len(each.ids), 'letter')}{batches}")
            if not yes:
                typer.echo(report.ids_text(each.ids), nl=False)
        tell_dry(yes)
    if failure:
        fail(f"{failure}. What is printed above is done; a second run does the rest", 1)
    if not any(each.ids for each in results.values()):
        fail(f"{_places(place)}: no such letter", 1)


def _do(place: Place, job: Any, results: dict[str, Any]) -> None:
    """One queue's part of a job; the results tell how far it went."""
    from understudy.client.stages.dead_letters.queue import NoQueueError  # noqa: PLC0415  # needs aio-pika
    from understudy.client.stages.dead_letters.work import Done, do  # noqa: PLC0415

    results[job.queue] = Done()

    async def work(connection: Any) -> None:
        try:
            await do(connection, job, Progress(job.queue), results[job.queue])
        except NoQueueError:
            if place.named:
                raise

    attempt(place, work)


def _queue_of(place: Place, message_id: str) -> str:
    """The one queue that has a letter."""
    if len(place.queues) == 1:
        return place.queues[0]
    found = [
        name
        for name in place.queues
        if any(each.delivery.id == message_id for each in letters_of(place, name, None, bodies=False)[0])
    ]
    if len(found) != 1:
        fail(f"letter {message_id!r} is in {len(found)} of {', '.join(place.queues)}; --stage or --queue names one", 1)
    return found[0]


def _place(application: str, broker: list[str] | None, queue: list[str] | None, stage: list[str] | None) -> Place:
    check_installed()
    try:
        return Place.of(load(application) if application else None, broker or [], queue or [], stage or [])
    except ConfigurationError as error:
        fail(str(error), 2)


def _places(place: Place) -> str:
    return ", ".join(place.queues)


def _target(place: Place, name: str, to: str) -> str:
    try:
        return place.target(name, to)
    except ConfigurationError as error:
        fail(str(error), 2)


def _wanted(ids: list[str] | None, groups: list[str] | None, *, everything: bool) -> Wanted:
    return Wanted(ids=frozenset(ids or ()), groups=frozenset(groups or ()), everything=everything)


def _header(text: str) -> tuple[str, Any]:
    """One --header: ``name=text``, or ``name:=json`` for a whole number or a truth value."""
    name, equals, value = text.partition("=")
    if not equals or not name.rstrip(":"):
        fail(f"--header {text}: NAME=TEXT or NAME:=JSON", 2)
    if not name.endswith(":"):
        return name, value
    try:
        found = json.loads(value)
    except ValueError as error:
        fail(f"--header {text}: {value!r} is no JSON: {error}", 2)
    if not isinstance(found, (str, int)) or (isinstance(found, int) and abs(found) > LARGEST_NUMBER):
        fail(f"--header {text}: a header is a text, true, false, or a whole number of 64 bits", 2)
    return name[:-1], found


def _octets(body: str) -> bytes | None:
    """The new body in a file; None if none is given."""
    if not body:
        return None
    try:
        return sys.stdin.buffer.read() if body == "-" else Path(body).read_bytes()
    except OSError as error:
        fail(f"--body {body}: {error.strerror}", 2)
