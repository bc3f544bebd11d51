"""``/promotable`` tells the truth: a broker that begins a campaign has no blocker."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from tests.simulator.seed_run import End, run_seed
from understudy.ha.following.backup import Backup
from understudy.ha.ha_broker import HaBroker
from understudy.ha.showing.health import KINDS, promotion_blockers
from understudy.ha.store.coordination import GroupState

SEEDS = range(8)


def test_who_campaigns_has_no_blocker(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    campaign, act = Backup._begin_campaign, Backup.act

    def begin_campaign(backup: Backup, group: GroupState) -> None:
        assert promotion_blockers(cast("HaBroker", backup._host)) == []
        seen["campaign"] += 1
        campaign(backup, group)

    def look(backup: Backup) -> None:
        ha = cast("HaBroker", backup._host)
        if hasattr(ha, "primary"):  # else it is being made
            seen.update(each.kind for each in promotion_blockers(ha))
        act(backup)

    monkeypatch.setattr(Backup, "_begin_campaign", begin_campaign)
    monkeypatch.setattr(Backup, "act", look)
    for seed in SEEDS:
        result = run_seed(seed)
        assert result.end is End.HELD, result
    assert seen["campaign"] > len(SEEDS)
    assert {"set", "journal", "catch_up"} <= seen.keys() <= {"campaign", *KINDS}, seen
