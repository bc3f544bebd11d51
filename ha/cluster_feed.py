"""The event feed of ``understudy cluster``: what each broker's configuration says of it."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Final

import attrs
import typer

from understudy.broker.config import ConfigError, structure

_FEED_TOML: Final = """\
feed = true

[feed]
detail = "{detail}"
{target}
"""


class FeedDetail(StrEnum):
    """What the brokers tell the event feed beside their journals."""

    ROLES = "roles"
    MESSAGES = "messages"


@attrs.frozen(kw_only=True)
class FeedPlan:
    """Where each broker brings its event feed: into files, or into a topic of Kafka.

    Attributes:
        detail: as ``[feed] detail``.
        directory: has one for each broker.
        kafka: ``host:port`` of Kafka's servers; none: into files.
        topic: of Kafka.
    """

    detail: FeedDetail
    directory: Path
    kafka: tuple[str, ...] = ()
    topic: str = ""

    def keys(self, broker: str) -> str:
        """What the configuration of a broker gets."""
        if not self.kafka:
            out = json.dumps(str((self.directory / broker).absolute()), ensure_ascii=False)
            return _FEED_TOML.format(detail=self.detail, target=f"out = {out}")
        text = _FEED_TOML.format(detail=self.detail, target=f"topic = {json.dumps(self.topic)}")
        return f"{text}\n[kafka]\nhosts = {json.dumps(self.kafka)}\n"


def feed_plan(feed: FeedDetail | None, out: Path | None, data: Path, kafka: str, topic: str) -> FeedPlan | None:
    """What the options say of the feed. Raises: typer.BadParameter."""
    for name, given in (("--feed-out", out is not None), ("--kafka", bool(kafka)), ("--topic", bool(topic))):
        if given and feed is None:
            raise typer.BadParameter("says where a feed is written: give --feed too", param_hint=name)
    if feed is None:
        return None
    if bool(kafka) != bool(topic):
        raise typer.BadParameter("go together: HOSTS and a topic", param_hint="--kafka and --topic")
    if not kafka:
        return FeedPlan(detail=feed, directory=out or data / "feed")
    if out is not None:
        raise typer.BadParameter("the feed goes into Kafka, and not into --feed-out", param_hint="--kafka")
    try:
        table = {"kafka": {"hosts": [each.strip() for each in kafka.split(",")]}, "feed": {"topic": topic}}
        hosts = structure(table, file="the options").kafka.hosts
    except ConfigError as error:
        raise typer.BadParameter(
            error.problem, param_hint="--topic" if error.key == "feed.topic" else "--kafka"
        ) from error
    return FeedPlan(detail=feed, directory=data / "feed", kafka=hosts, topic=topic)
