"""FeedPlugin: ``[plugins] feed = true`` starts ``understudy feed`` beside a broker, and starts it again when it has ended.

The feed is a process of its own (`feed.edge.process`), at low priority (`SideProcess`). A feed that is still ending keeps the
next one out of its directory, and that one is tried again.

It writes into files, or into a topic of Kafka. What ``[kafka]`` says reaches it by its environment, passwords by their file.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import attrs

from understudy.broker.config import Config, KafkaConfig
from understudy.broker.plugin_api.passive_plugin import PassivePlugin
from understudy.observers.edge.side_process import SideProcess

HOLD_NAME: Final = "understudy"
STATE_NAME: Final = "kafka-feed.state"
"""In the data directory: where the feed into Kafka stands."""
KAFKA_VARIABLE: Final = "UNDERSTUDY__KAFKA"


class FeedPlugin(PassivePlugin):
    """Looks after the process."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._side = SideProcess("event feed", self.command(), environment=self.environment())

    def command(self) -> list[str]:
        """Command line of the feed's process."""
        broker, feed = self.config.broker, self.config.feed
        words = [sys.executable, "-m", "understudy.observers.feed.edge.process", "--data", str(broker.data)]
        words += ["--follow", "--hold", HOLD_NAME]
        if feed.topic:
            state = str(broker.data / STATE_NAME)
            return [*words, "--kafka", ",".join(self.config.kafka.hosts), "--topic", feed.topic, "--cursor", state]
        assert feed.out is not None  # the configuration sees to it
        words += ["--out", str(feed.out), "--format", feed.format]
        return [*words, "--roll-bytes", str(feed.roll_bytes), "--roll-seconds", str(feed.roll_s)]

    def environment(self) -> dict[str, str]:
        """Where it runs."""
        found = dict(os.environ)
        if self.config.feed.topic:
            found[KAFKA_VARIABLE] = kafka_table(self.config.kafka)
        return found

    def tick(self, now_ms: int) -> None:
        self._side.tick(now_ms)

    async def stop(self) -> None:
        """Let it end."""
        self._side.close()

    def status(self) -> dict[str, Any]:
        return {**self._side.status(), "out": str(self.config.feed.out or ""), "topic": self.config.feed.topic}


def kafka_table(config: KafkaConfig) -> str:
    """The section as an inline table of TOML, for the variable that gives it."""
    given = attrs.asdict(config, filter=lambda attribute, value: value != attribute.default)
    return _toml(given)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items() if each is not None) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(str(value.absolute() if isinstance(value, Path) else value), ensure_ascii=False)
