"""FeedPlugin: ``[plugins] feed = true`` starts ``understudy feed`` beside a broker, and starts it again when it has ended.

The feed is a process of its own (`feed_process`), at low priority: nothing that becomes of it touches the broker. It ends with the
broker, however that ends, since its standard input is a pipe that the broker holds. The broker waits for it neither when it starts
nor when it stops; a feed that is still ending keeps the next one out of its directory, and that one is tried again.

It writes into files, or into a topic of Kafka. What ``[kafka]`` says reaches it by its environment, passwords by their file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import attrs
import structlog

from understudy.broker.config import Config, KafkaConfig
from understudy.broker.passive_plugin import PassivePlugin

HOLD_NAME: Final = "understudy"
LOOK_MS: Final = 1_000
"""The first one is started so long after the broker: by then a new one has a journal."""
MAX_PAUSE_MS: Final = 60_000
"""A feed that ends again and again is started ever less often."""

STATE_NAME: Final = "kafka-feed.state"
"""In the data directory: where the feed into Kafka stands."""
KAFKA_VARIABLE: Final = "UNDERSTUDY__KAFKA"

_log: Final = structlog.get_logger("understudy.feed")


class FeedPlugin(PassivePlugin):
    """Looks after the process."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._process: subprocess.Popen[bytes] | None = None
        self._due_ms = 0
        self._pause_ms = LOOK_MS
        self._starts = 0
        self._started_ms = 0
        self._ended = ""

    def command(self) -> list[str]:
        """What is run."""
        broker, feed = self.config.broker, self.config.feed
        words = [sys.executable, "-m", "understudy.observers.feed_process", "--data", str(broker.data)]
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
        if not self._due_ms:
            self._due_ms = now_ms + LOOK_MS
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + LOOK_MS
        if self._process is None:
            self._start(now_ms)
        elif (code := self._process.poll()) is not None:
            self._close()
            self._pause_ms = LOOK_MS if now_ms - self._started_ms >= MAX_PAUSE_MS else self._pause_ms * 2
            self._pause_ms = min(self._pause_ms, MAX_PAUSE_MS)
            self._due_ms = now_ms + self._pause_ms
            self._ended = f"ended with code {code}"
            _log.warning("the event feed has ended", code=code, again_in_s=self._pause_ms / 1000)

    def _start(self, now_ms: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # it is this program
            self.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env=self.environment(),
        )
        self._starts += 1
        self._started_ms = now_ms

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()

    async def stop(self) -> None:
        """Let it end."""
        if self._process is not None:
            self._process.poll()
        self._close()

    def status(self) -> dict[str, Any]:
        process = self._process
        return {
            "pid": process.pid if process is not None else None,
            "starts": self._starts,
            "last_end": self._ended,
            "out": str(self.config.feed.out or ""),
            "topic": self.config.feed.topic,
        }


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
