"""Which worker gets a client: shards in parts, what waits for recovery first, pages that are put together."""

from __future__ import annotations

import pytest

from tests.unit.xa.records_kit import entry
from understudy.xa.core.register.routing import Routes, merged, shares
from understudy.xa.core.register.wire import MAX_LISTED, Listing, Shown, Waits


@pytest.mark.parametrize(
    ("shards", "workers", "parts"),
    [(4, 2, ["01", "23"]), (5, 2, ["012", "34"]), (3, 3, ["0", "1", "2"]), (7, 3, ["012", "34", "56"])],
)
def test_each_shard_has_one_worker(shards: int, workers: int, parts: list[str]) -> None:
    assert ["".join(map(str, part)) for part in shares(shards, workers)] == parts


def test_who_comes_goes_where_its_job_has_something_to_recover() -> None:
    routes = Routes(shares(4, 2))
    routes.loads[0] = 1
    assert routes.arrival("job") == 1  # the one with fewer clients
    assert routes.recovering("job", 1) is None
    for shard, gid in ((3, "c"), (1, "b"), (2, "a")):
        routes.told(Waits("job", shard, gid, True))
    routes.told(Waits("job", 1, "b", True))  # said twice
    assert routes.waiting == 3
    assert routes.arrival("job") == 0
    assert routes.arrival("other") == 1
    assert [routes.recovering("job", worker) for worker in (0, 1)] == [0, 1]  # the own one first
    routes.told(Waits("job", 1, "b", False))
    routes.told(Waits("job", 1, "b", False))
    assert [routes.recovering("job", worker) for worker in (0, 1)] == [1, 1]


def test_what_a_worker_that_is_gone_had_is_told_anew() -> None:
    routes = Routes(shares(2, 2))
    routes.told(Waits("job", 0, "a", True))
    routes.told(Waits("job", 1, "b", True))
    routes.forget(0)
    assert routes.recovering("job", 0) == 1
    routes.told(Waits("job", 0, "a", False))  # late
    routes.told(Waits("job", 0, "a", True))
    assert routes.recovering("job", 0) == 0


def test_pages_of_all_workers_are_one_list_without_a_gap() -> None:
    def page(numbers: range, more: bool) -> Listing:
        return Listing([Shown(entry(number), "pending", 0) for number in numbers], more, 7)

    both = merged([page(range(0, 10, 2), True), page(range(1, 30, 2), False)])
    assert [int(one.entry.gid, 16) for one in both.entries] == list(range(9))  # 10 may follow
    assert both.more
    whole = merged([page(range(0, 4, 2), False), page(range(1, 4, 2), False)])
    assert (len(whole.entries), whole.more, whole.now_ms) == (4, False, 7)
    long = merged([page(range(MAX_LISTED), False), page(range(MAX_LISTED, MAX_LISTED + 1), False)])
    assert (len(long.entries), long.more) == (MAX_LISTED, True)
