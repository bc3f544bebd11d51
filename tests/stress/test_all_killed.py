"""All three brokers are killed at once under load, and started again in each order (G1 to G5, G8).

The two backups are alike: of the six orders those three are run in which the primary, ``b1``, comes first, second and last.

On one host the backups would be a millisecond behind the primary, and a lost promise would be found by luck only. So one of them is
stopped shortly before: it has not even read what the others hold, and where a backup is started first it is this one.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.broker_process import wait_until
from tests.stress.clients import declare, read_queue
from tests.stress.confirmer import Confirmer
from tests.stress.group import running_group
from tests.stress.load import Books, Load

pytestmark = [pytest.mark.stress, pytest.mark.timeout(240)]

ORDERS = [("b1", "b2", "b3"), ("b2", "b1", "b3"), ("b2", "b3", "b1")]
LAG_S = 0.3
"""So long one backup is behind: enough for many commits, too short for its expulsion."""
PAUSE_S = 0.7
"""Between two starts: more than a start takes, so that the first ones look at each other before the last is there."""


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_killed_at_once_and_started_in_any_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    with running_group(tmp_path) as group:
        first = Load(group.ports, name="a")
        first.declare()
        declare(first.finder, ["c"])
        primary = group.primary()
        assert primary.name == "b1"
        stream = Confirmer("c", primary.port, "c")
        with first.running():
            stream.start()
            first.wait_committed(100)
            stream.wait_confirmed(100)
            next(group[name] for name in order if name != primary.name).pause()
            time.sleep(LAG_S)
            group.kill_all()
        stream.join()
        for name in order:
            group.start(name)
            wait_until(f"{name} answers", lambda n=name: group[n].row()["status"] != "down", 60.0)  # type: ignore[misc]
            time.sleep(PAUSE_S)
        rows = group.ready(*order)
        # Who starts first leads, and gives way to one that holds more: an epoch each to name it and to begin.
        handed_over = sum(broker.log_text().count("lead handed over") for broker in group.brokers.values())
        assert max(row["epoch"] for row in rows.values()) == 2 + 2 * handed_over
        assert handed_over <= 2, "each holds more than the one before"
        books = Books(first)
        resolved = books.resolve(first.finder)
        print(f"{'-'.join(order)}: {dict(first.counts())}, unknown resolved {resolved}, led by {group.primary().name}")
        assert stream.sent > len(stream.confirmed) > 0, "nothing was under way at the kill: this showed nothing"
        group.settled()
        found = books.read(first.finder)
        books.check(found)
        stream.check(read_queue(first.finder, "c"))
        digests = group.agree()
        assert {queue: len(messages) for queue, messages in found.items()} == {
            queue: digests[queue][0] for queue in found
        }
        # And it works: more of the same on top of what was kept.
        second = Load(group.ports, name="b", queues=first.queues)
        with second.running():
            second.wait_committed(50)
        both = Books(first, second)
        both.resolve(second.finder)
        group.settled()
        both.check(both.read(second.finder))
        group.agree()
