"""``understudy serve`` that counts what is alive when it gets SIGUSR2, and writes it beside its data directory.

    python counted_broker.py CONFIG

Of every type: how many objects there are; of every class of ours: how much its containers hold, all its objects together; and how
many objects the collector has found in cycles since the process began. One thing is made smaller than in the product: the log
that is kept for backups that come back (128 MiB would not be full in a test).
"""

from __future__ import annotations

import gc
import json
import signal
import sys
from collections import Counter, deque
from pathlib import Path
from typing import Any

from understudy.broker.config import load
from understudy.broker.server.process.run import serve
from understudy.broker.server.turn import node_driver

KEPT_BYTES = 256 << 10
CONTAINERS = (dict, list, set, deque, bytearray)


def names_of(kind: type) -> list[str]:
    """The slots of a class and its bases."""
    names: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return names


def census() -> dict[str, dict[str, int]]:
    gc.unfreeze()  # the product sets what is old aside, and get_objects does not see that
    gc.collect()
    objects: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        module = str(kind.__module__)
        objects[f"{module}.{kind.__qualname__}"] += 1
        if module.startswith("understudy."):
            values = {name: getattr(each, name, None) for name in names_of(kind)} | getattr(each, "__dict__", {})
            for name, value in values.items():
                if isinstance(value, CONTAINERS):
                    held[f"{kind.__qualname__}.{name.lstrip('_')}"] += len(value)
    gc.freeze()
    collected = sum(generation["collected"] for generation in gc.get_stats())
    return {"objects": dict(objects), "held": dict(held), "garbage": {"in cycles": collected}}


def main() -> int:
    path = Path(sys.argv[1])
    data = load(path).broker.data

    def counted(_: int, __: Any) -> None:
        census()  # a look at an object may give it a __dict__ that it did not have
        temporary = data.with_suffix(".counting")
        temporary.write_text(json.dumps(census()), encoding="utf-8")
        temporary.replace(data.with_suffix(".census"))

    signal.signal(signal.SIGUSR2, counted)
    node_driver.KEPT_BYTES = KEPT_BYTES  # type: ignore[misc]
    return serve(path)


if __name__ == "__main__":
    sys.exit(main())
