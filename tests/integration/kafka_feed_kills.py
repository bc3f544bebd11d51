"""``python -m tests.integration.kafka_feed_kills CLUSTER STATE HOSTS TOPIC KILLS SEED``: a feed into Kafka, killed at random.

It is a program of its own because it forks: each feed begins without Python's start, so one lives for some tenths of a
second. The last one is let live until it has read everything.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from understudy.broker.config import KafkaConfig
from understudy.observers.feed.edge import directory as feed_directory
from understudy.observers.feed.edge.directory import FeedDirectory
from understudy.observers.feed.edge.kafka.topic import KafkaFeed
from understudy.observers.feed.feed import Selection


def read(cluster: Path, state: Path, hosts: str, topic: str) -> None:
    sink = KafkaFeed(KafkaConfig(hosts=(hosts,)), topic, state, 2_000)
    feeds = FeedDirectory(cluster, sink)
    feeds.read_in_rounds(sink, Selection())
    feeds.close()
    sink.close()


def main() -> None:
    cluster, state, hosts, topic = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    vars(feed_directory)["ROUND_EVENTS"] = 100
    chance = random.Random(int(sys.argv[6]))
    begun = 0
    for _ in range(int(sys.argv[5])):
        pid = os.fork()
        if not pid:
            read(cluster, state, hosts, topic)
            os._exit(0)
        time.sleep(chance.uniform(0.0, 0.6))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        begun += b'"begun":{' in state.read_bytes() if state.exists() else 0
    read(cluster, state, hosts, topic)
    print(begun, "were killed between a write of the state and the next")


if __name__ == "__main__":
    main()
