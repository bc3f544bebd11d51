"""``python -m tests.unit.observers.feed.feed_kills CLUSTER OUT KILLS SEED``: a feed into files that is killed at random, many
times.

It is a program of its own because it forks: each feed begins without Python's start, so one lives for some milliseconds. The last
one is let live until it has read everything.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from understudy.observers.feed.edge import directory as feed_directory
from understudy.observers.feed.edge.directory import FeedDirectory
from understudy.observers.feed.edge.sink_files import JsonLines, RollingFiles
from understudy.observers.feed.feed import Selection


def read(cluster: Path, out: Path) -> None:
    files = RollingFiles(out, JsonLines(), 20_000, 3600.0)
    feeds = FeedDirectory(cluster, files)
    feeds.read_in_rounds(files, Selection())
    feeds.close()
    files.close()


def main() -> None:
    cluster, out = Path(sys.argv[1]), Path(sys.argv[2])
    vars(feed_directory)["ROUND_EVENTS"] = 100
    chance = random.Random(int(sys.argv[4]))
    for _ in range(int(sys.argv[3])):
        pid = os.fork()
        if not pid:
            read(cluster, out)
            os._exit(0)
        time.sleep(chance.uniform(0.0, 0.06))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    read(cluster, out)


if __name__ == "__main__":
    main()
