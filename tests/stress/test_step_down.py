"""An operator at work on real brokers under load: step-downs in a row, a broker expelled and admitted.

How long a step-down stops commits, over more of them::

    UNDERSTUDY_STEP_DOWNS=20 python -m pytest -s tests/stress/test_step_down.py -k nothing_is_lost
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pytest

from tests.integration.broker_process import wait_until
from tests.stress.group import Group, running_group
from tests.stress.load import Books, Load
from tests.stress.mover import Told
from tests.stress.operator import order, refused, run
from understudy.broker.security import hash_password

pytestmark = [pytest.mark.stress, pytest.mark.timeout(240)]

STEP_DOWNS = int(os.environ.get("UNDERSTUDY_STEP_DOWNS", "3"))
LONGEST_S = 10.0
"""Ten times what a step-down may take."""


def longest_gap_s(load: Load, since: float) -> float:
    """The longest time without an acknowledged commit, as all clients together saw it since then."""
    told = sorted(tx.told_at for tx in load.transactions if tx.told is Told.COMMITTED and tx.told_at >= since)
    return max(after - before for before, after in zip([since, *told], told, strict=False))


def hand_over(group: Group, load: Load, *words: str) -> tuple[float, float]:
    """One step-down. Returns how long the command took to see the new primary, and the gap in the clients' commits."""
    former = group.primary()
    before = time.monotonic()
    done = order(group, "step-down", *words)
    assert done["primary"] != former.name
    assert done.get("successor", done["primary"]) == done["primary"]
    load.wait_committed(20)
    gap_s = longest_gap_s(load, before)
    group.ready(*group.brokers)
    assert group.primary().name == done["primary"], "it does not bounce back"
    return done["took_s"], gap_s


def test_nothing_is_lost_in_step_downs_under_load(tmp_path: Path) -> None:
    with running_group(tmp_path) as group:
        load = Load(group.ports, movers=4)
        load.declare()
        gaps = []
        with load.running():
            load.wait_busy()
            backup = group.backups()[0].name
            gaps.append(hand_over(group, load, "--to", backup))
            assert group.primary().name == backup
            gaps += [hand_over(group, load) for _ in range(STEP_DOWNS - 1)]
        took, stopped = sorted(each[0] for each in gaps), sorted(each[1] for each in gaps)
        print(
            f"\n{len(gaps)} step-downs: no commit for a median of {statistics.median(stopped):.3f} s, worst "
            f"{stopped[-1]:.3f} s; command to new primary {statistics.median(took):.3f} s, worst {took[-1]:.3f} s"
        )
        assert stopped[-1] < LONGEST_S
        group.settled()
        group.agree()
        books = Books(load)
        books.resolve(load.finder)
        books.check(books.read(load.finder))
        went_on = sum(broker.log_text().count("goes on from memory") for broker in group.brokers.values())
        assert went_on == len(gaps), "no former primary has read its journal again"
        words = {end.text for end in load.ends}
        assert any("has handed over to" in each and "primary is amqp://" in each for each in words), words


def test_who_is_expelled_stays_out_until_it_is_admitted(tmp_path: Path) -> None:
    with running_group(tmp_path) as group:
        primary, (first, second) = group.primary().name, [broker.name for broker in group.backups()]
        assert "there is no broker 'b9'" in refused(group, "expel", "b9")
        assert "understudy step-down" in refused(group, "expel", primary)
        done = order(group, "expel", first)
        assert (done["broker"], done["changed"], done["barred"]) == (primary, True, [first])
        assert done["in_sync"] == sorted([primary, second])
        assert order(group, "expel", first)["changed"] is False
        assert "min_insync is 2" in refused(group, "expel", second)
        assert f"{first} is barred (understudy admit {first})" in refused(group, "step-down", "--to", first)
        blocked = f"until `understudy admit {first}`"
        wait_until("it is told so", lambda: any(blocked in each for each in group[first].row().get("blockers", ())))
        assert group[first].stop() == 0
        group.start(first)
        wait_until(
            "it is told so again", lambda: any(blocked in each for each in group[first].row().get("blockers", ()))
        )
        # Another primary keeps it out as well.
        order(group, "step-down", "--to", second)
        group.primary()
        wait_until("the former primary is back", lambda: group[primary].row()["status"] == "ready")
        assert first not in group[second].row()["in_sync"]
        # With nobody there the store itself is changed.
        for name in (primary, second):
            assert group[name].stop() == 0
        assert "is the primary of epoch" in run("expel", second, "--config", str(group[first].config), code=1)
        text = run("admit", first, "--config", str(group[first].config))
        assert "said by the coordination store" in text
        group.start(primary, second)
        group.ready(*group.brokers)
        assert order(group, "admit", first)["changed"] is False


def test_without_permission_nothing_is_done(tmp_path: Path) -> None:
    user = f"""
[[users]]
name = "clerk"
password_hash = "{hash_password("secret", bytes(16), ln=1)}"
[users.vhosts]
"/" = {{ configure = ".*", write = ".*", read = ".*", admin = "^whoami$" }}
[[users]]
name = "captain"
password_hash = "{hash_password("secret", bytes(16), ln=1)}"
[users.vhosts]
"/" = {{ configure = "^amq", write = "^amq", read = "^amq", admin = "^step-down$" }}
"""
    with running_group(tmp_path, user, brokers=2) as group:
        said = refused(group, "step-down", "--user", "clerk", "--password", "secret")
        assert "403" in said
        assert "step-down" in said
        former = group.primary().name
        done = order(group, "step-down", "--user", "captain", "--password", "secret")
        assert (done["broker"], done["epoch"]) == (former, 2), "it may ask for nothing but that"
        group.ready(*group.brokers)
        for broker in group.running():
            assert broker.stop() == 0
        assert "no broker of" in refused(group, "step-down")
        group.start()
        group.ready(*group.brokers)
