"""The primary is stopped (SIGSTOP) for a minute under load and goes on: it keeps nothing from the new primary (G6)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.broker_process import wait_until
from tests.stress.clients import declare, read_queue
from tests.stress.confirmer import Confirmer
from tests.stress.group import WAIT_S, running_group
from tests.stress.load import Books, Load
from tests.stress.mover import Told

pytestmark = [pytest.mark.stress, pytest.mark.waits, pytest.mark.timeout(600)]

PAUSE_S = 60.0
STREAMS = ("c.0", "c.1", "c.2")


def test_what_a_paused_primary_answers_afterwards_is_kept(tmp_path: Path) -> None:
    with running_group(tmp_path) as group:
        old = group.primary()
        others = [broker for broker in group.running() if broker is not old]
        # These have no heartbeats and never look for another broker: whatever the old primary says, they hear it.
        stuck = Load([old.port], movers=5, name="s", stays=True)
        stuck.declare()
        declare(stuck.finder, STREAMS)
        # Whatever these write while it is stopped, it reads when it goes on: half a window at least.
        streams = [Confirmer(f"c{n}", old.port, queue, window=2000) for n, queue in enumerate(STREAMS)]
        for each in streams:
            each.start()
        stuck.start()
        stuck.wait_busy()
        for each in streams:
            each.wait_confirmed(500)
        stuck.wait_committed(30)

        old.pause()
        paused_at = time.monotonic()
        free = Load([broker.port for broker in others], movers=4, name="f", queues=stuck.queues, pace_s=0.05)
        with free.running():
            new = wait_until(
                "another broker leads",
                lambda: next((broker for broker in others if broker.row()["status"] == "active"), None),
                WAIT_S,
            )
            led_after_s = time.monotonic() - paused_at
            free.wait_committed(30)
            time.sleep(max(0.0, paused_at + PAUSE_S - time.monotonic()))
            resumed_at = time.monotonic()
            old.resume()
            for each in streams:
                each.join()
            stuck.join()
            ended_after_s = time.monotonic() - resumed_at
            rows = group.ready()
            free.wait_committed(30)

        assert (rows[old.name]["role"], rows[old.name]["pid"]) == ("backup", old.pid)
        assert rows[old.name]["counters"]["cores"] == 2
        assert rows[new.name]["role"] == "primary"
        ends = [*stuck.ends, *[each.end for each in streams]]
        assert len(ends) == len(stuck.movers) + len(streams)
        for end in ends:
            assert end is not None
            assert end.code in (320, 0), end
            assert end.at > resumed_at
        late = [tx for tx in stuck.transactions if tx.told is Told.COMMITTED and tx.told_at > resumed_at]
        late_confirms = sum(at > resumed_at for each in streams for at in each.confirmed_at.values())
        books = Books(stuck, free)
        resolved = books.resolve(free.finder)
        print(
            f"{new.name} led after {led_after_s:.1f} s; stuck {dict(stuck.counts())}, unknown resolved {resolved}; ends "
            f"{[(end.code, end.text) for end in ends if end]} {ended_after_s:.2f} s after SIGCONT; answered after it: "
            f"{len(late)} commits, {late_confirms} confirms; unconfirmed "
            f"{[each.sent - len(each.confirmed) for each in streams]}"
        )
        group.settled()
        books.check(books.read(free.finder))
        for each in streams:
            found = read_queue(free.finder, each.queue)
            each.check(found)
            print(f"{each.queue}: {len(found)} there, {len(each.confirmed)} confirmed, {each.sent} sent")
        group.agree()
