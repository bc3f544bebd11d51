"""Event feed and outlet of ``understudy cluster``: what each broker's configuration says of them."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Any

import attrs
import typer

from understudy.broker.config import ConfigError, structure

_OPTIONS = {"feed.topic": "--topic", "outlet.topic": "--outlet"}


class FeedDetail(StrEnum):
    """Detail of the event feed: what brokers tell it beside their journals."""

    ROLES = "roles"
    MESSAGES = "messages"


@attrs.frozen(kw_only=True)
class ObserverPlan:
    """Where each broker brings its event feed, and its committed transactions.

    Attributes:
        detail: as ``[feed] detail``; None: there is no feed.
        directory: of the feed's files; has one for each broker.
        topic: of the feed in Kafka; "": it goes into files.
        outlet: topic of committed transactions, as ``[outlet] topic``; "": there is no outlet.
        kafka: ``host:port`` of Kafka's servers; there are some if there is one of the topics.
    """

    detail: FeedDetail | None = None
    directory: Path = Path("feed")
    topic: str = ""
    outlet: str = ""
    kafka: tuple[str, ...] = ()

    def keys(self, broker: str) -> str:
        """Lines for a broker's configuration, to stand behind ``[plugins]``."""
        plugins, sections = [], []
        if self.detail is not None:
            out = str((self.directory / broker).absolute())
            target = f"topic = {_quoted(self.topic)}" if self.topic else f"out = {_quoted(out)}"
            plugins.append("feed = true")
            sections.append(f'[feed]\ndetail = "{self.detail}"\n{target}')
        if self.outlet:
            plugins.append("outlet = true")
            sections.append(f"[outlet]\ntopic = {_quoted(self.outlet)}\ncreate_topics = true")
        if self.kafka:
            sections.append(f"[kafka]\nhosts = {json.dumps(self.kafka)}")
        return "\n".join(plugins) + "\n\n" + "\n\n".join(sections) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def observer_plan(
    feed: FeedDetail | None, out: Path | None, data: Path, kafka: str, topic: str, outlet: str
) -> ObserverPlan | None:
    """The plan of feed and outlet that the options ask for; None if they ask for neither. Raises: typer.BadParameter."""
    for name, given in (("--feed-out", out is not None), ("--topic", bool(topic))):
        if given and feed is None:
            raise typer.BadParameter("says where a feed is written: give --feed too", param_hint=name)
    if kafka and not (topic or outlet):
        raise typer.BadParameter("give --topic for the feed, --outlet for transactions, or both", param_hint="--kafka")
    for name, text in (("--topic", topic), ("--outlet", outlet)):
        if text and not kafka:
            raise typer.BadParameter("is a topic of Kafka: give --kafka HOSTS too", param_hint=name)
    if topic and out is not None:
        raise typer.BadParameter("the feed goes into Kafka, and not into --feed-out", param_hint="--topic")
    if feed is None and not outlet:
        return None
    hosts = _hosts(kafka, topic, outlet) if kafka else ()
    return ObserverPlan(detail=feed, directory=out or data / "feed", topic=topic, outlet=outlet, kafka=hosts)


def _hosts(kafka: str, topic: str, outlet: str) -> tuple[str, ...]:
    table: dict[str, Any] = {"kafka": {"hosts": [each.strip() for each in kafka.split(",")]}}
    table |= {name: {"topic": text} for name, text in (("feed", topic), ("outlet", outlet)) if text}
    try:
        return structure(table, file="the options").kafka.hosts
    except ConfigError as error:
        raise typer.BadParameter(error.problem, param_hint=_OPTIONS.get(error.key or "", "--kafka")) from error
