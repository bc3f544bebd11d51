"""``understudy outlet``: committed transactions of one broker's journal into Kafka, each whole and once.

It is an entry point of ``understudy.commands``. The broker's plugin `outlet.edge.plugin` runs the same beside the primary
(`outlet.edge.process`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import attrs
import typer

from understudy.broker.config import ConfigError, OutletConfig, load
from understudy.broker.errors import UnderstudyError
from understudy.observers.feed.edge.command import UNUSABLE_ERRORS
from understudy.observers.feed.edge.target import KafkaMissingError
from understudy.observers.kafka_refused import KafkaRefusedError
from understudy.observers.outlet.errors import KafkaAwayError, OutletFencedError, OutletGapError
from understudy.observers.outlet.reading.units import PositionError
from understudy.observers.outlet.sending.rules import OutletRuleError, parse_rule

if TYPE_CHECKING:
    from understudy.observers.outlet.edge.job import OutletJob

DAMAGED: Final = 1
UNUSABLE: Final = 2
FENCED: Final = 3
GAP: Final = 4
STOP_S: Final = 5.0
"""So long a Kafka transaction may take to end when the outlet is asked to end."""
_UNUSABLE: Final = (
    *UNUSABLE_ERRORS,
    ConfigError,
    KafkaAwayError,
    KafkaMissingError,
    KafkaRefusedError,
    OutletRuleError,
    PositionError,
)


class Begin(StrEnum):
    """Where an outlet begins that has never sent anything."""

    OLDEST = "oldest"
    NEWEST = "newest"


class OnUnsendable(StrEnum):
    """The fate of a message that cannot be a record of Kafka: see `outlet.unsendable`."""

    ASIDE = "aside"
    SKIP = "skip"
    STOP = "stop"


def outlet(
    data: Annotated[Path, typer.Option(help="The data directory of one broker.", show_default=False)],
    kafka: Annotated[
        str, typer.Option(metavar="HOSTS", help="Kafka at host:port,...; before kafka.hosts of --config.")
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option(help="A configuration file, for its sections [kafka] and [outlet].", show_default=False),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN=TOPIC", help="Of vhost/queue; before those of --config.", show_default=False),
    ] = None,
    topic: Annotated[str, typer.Option(help="Of what no rule matches. [understudy.{group}]", show_default=False)] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    begin: Annotated[
        Begin | None, typer.Option("--from", help="Of an outlet that never sent anything. [oldest]", show_default=False)
    ] = None,
    create_topics: Annotated[bool, typer.Option("--create-topics", help="Make topics that are missing.")] = False,
    on_unsendable: Annotated[
        OnUnsendable | None,
        typer.Option(help="Of a message that Kafka cannot take. [aside]", show_default=False),
    ] = None,
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="Go on without what this journal does not hold any more.")
    ] = False,
    hold: Annotated[
        str, typer.Option(metavar="NAME", help="The broker keeps what was not sent, up to feed.hold_bytes.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
) -> None:
    """Send committed transactions to Kafka, each group of them in one Kafka transaction with the position behind it.

    Goes on where the last outlet of the group has ended, whichever broker's journal that read. Exit codes: 0 done; 1 the journal is
    damaged; 2 the journal, Kafka or a topic cannot be used; 3 another outlet has taken over; 4 the journal does not hold
    everything that was not sent yet.
    """
    try:
        settings = load(config, os.environ).outlet if config is not None else OutletConfig()
        settings = attrs.evolve(
            settings,
            topic=topic or settings.topic,
            begin=begin.value if begin is not None else settings.begin,
            create_topics=create_topics or settings.create_topics,
            on_unsendable=on_unsendable.value if on_unsendable is not None else settings.on_unsendable,
        )
        own = [parse_rule(each) for each in rule or ()]
        kafka_config, outlet_job = _needing_kafka()
        connection = kafka_config(kafka, config, os.environ)
        watched = sys.stderr.isatty()
        job = outlet_job(
            data,
            connection,
            settings,
            own,
            accept_gap=accept_gap,
            hold=hold,
            progress=watched,
            begins_anew=begin is not None,
        )
        summary = asyncio.run(_run(job, follow=follow))
    except UnderstudyError as error:
        say(str(error))
        raise typer.Exit(exit_code(error)) from error
    print(json.dumps(summary) if as_json else _text(summary))  # noqa: T201  # a command prints


def _needing_kafka() -> tuple[Any, type[OutletJob]]:
    """Import the modules that need aiokafka, which is an extra: other commands do without.

    Raises:
        KafkaMissingError: it is not installed.
    """
    try:
        from understudy.observers.edge.kafka_connection import kafka_config  # noqa: PLC0415  # see above
        from understudy.observers.outlet.edge.job import OutletJob  # noqa: PLC0415
    except ImportError as error:
        raise KafkaMissingError(f"the outlet needs the extra 'kafka': {error}") from error
    return kafka_config, OutletJob


async def _run(job: OutletJob, *, follow: bool) -> dict[str, Any]:
    loop, work = asyncio.get_running_loop(), asyncio.current_task()
    assert work is not None

    def stop() -> None:
        job.stop()
        loop.call_later(STOP_S, work.cancel)  # it may wait for a Kafka that hangs
        for number in (signal.SIGINT, signal.SIGTERM):  # a second one ends the program at once
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        return await job.run(say, follow=follow)
    except asyncio.CancelledError:
        work.uncancel()
        raise KafkaAwayError(
            f"Kafka has not answered for {STOP_S:g} s; the next outlet finds out what it has taken"
        ) from None


def exit_code(error: UnderstudyError) -> int:
    """Of a process that ends with ``error``."""
    if isinstance(error, OutletFencedError):
        return FENCED
    if isinstance(error, OutletGapError):
        return GAP
    return UNUSABLE if isinstance(error, _UNUSABLE) else DAMAGED


def say(text: str) -> None:
    """On stderr."""
    print(f"understudy: outlet: {text}", file=sys.stderr, flush=True)  # noqa: T201  # a command prints


def _text(summary: dict[str, Any]) -> str:
    position = summary["position"]
    unsendable = f", {summary['unsendable']} messages that cannot be sent" if summary["unsendable"] else ""
    return (
        f"{summary['transactions']} transactions and {summary['plain_messages']} messages outside of them, "
        f"{summary['records']} Kafka records in {summary['kafka_transactions']} Kafka transactions{unsendable}; "
        f"position {position['epoch']}/{position['offset']}, CSN {position['csn']}"
    )
