"""Lists of branches in doubt: page by page, sorted once, and true of the moment in which a page is handed out."""

from __future__ import annotations

import random
from collections.abc import Callable

from understudy.broker.core.branches.dtx_lists import MAX_KEPT, InDoubtLists
from understudy.broker.core.state import BrokerState
from understudy.broker.transactions.dtx_branch import Completion, DtxBranch
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.broker.transactions.xid import Xid

LIMIT_BYTES = 400
PAGE = LIMIT_BYTES // (1 + 4 + 1 + 6 + 1)


def xid(number: int) -> Xid:
    return Xid(1, f"{number:06}".encode(), b"")


def prepared(state: BrokerState, number: int, vhost: str = "/") -> None:
    tx = TxBuffer(number)
    tx.branch = DtxBranch(
        vhost=vhost,
        xid=xid(number),
        offset=0,
        time_ms=0,
        events=0,
        digest=0,
        durable_events=0,
        durable_digest=0,
    )
    state.transactions[number] = tx


def listed(
    lists: InDoubtLists, state: BrokerState, between: Callable[[], object] = lambda: None
) -> list[tuple[int, int]]:
    """State and number of each branch, over all pages; something happens after each page."""
    found: list[tuple[int, int]] = []
    after, more = b"", True
    while more:
        more, page = lists.page(state, "/", after, LIMIT_BYTES)
        assert len(page) <= LIMIT_BYTES
        at = 0
        while at < len(page):
            branch, end = Xid.decode(page, at + 1)
            found.append((page[at], int(branch.global_id)))
            after, at = branch.encode(), end
        between()
    return found


def test_all_pages_have_all_branches_in_order() -> None:
    state, lists = BrokerState(), InDoubtLists()
    numbers = list(range(1, 10 * PAGE))
    for number in random.Random(7).sample(numbers, len(numbers)):
        prepared(state, number, "/" if number % 2 else "other")
    state.applying.completions["/", xid(2)] = Completion(committed=True, offset=1, time_ms=0)
    state.applying.completions["/", xid(4)] = Completion(committed=False, offset=2, time_ms=0)
    wanted = [(0, number) for number in numbers if number % 2] + [(1, 2), (2, 4)]
    assert listed(lists, state) == sorted(wanted, key=lambda row: row[1])


def test_all_branches_are_looked_through_once_for_all_pages() -> None:
    state, lists = BrokerState(), InDoubtLists()
    for number in range(1, 10 * PAGE):
        prepared(state, number)
    asked = 0
    every = state.prepared_branches

    def counted() -> list[TxBuffer]:
        nonlocal asked
        asked += 1
        return every()

    state.prepared_branches = counted  # type: ignore[method-assign]
    assert len(listed(lists, state)) == 10 * PAGE - 1
    assert asked == 1


def test_what_is_decided_between_two_pages_is_left_out() -> None:
    state, lists = BrokerState(), InDoubtLists()
    for number in range(1, 3 * PAGE):
        prepared(state, number)
    last = 3 * PAGE - 1

    def all_but_the_last_end() -> None:
        for number in range(PAGE + 1, last):
            state.transactions.pop(number, None)
        state.applying.completions["/", xid(last)] = Completion(committed=True, offset=1, time_ms=0)

    assert listed(lists, state, all_but_the_last_end) == [*((0, number) for number in range(1, PAGE + 1)), (1, last)]


def test_lists_that_are_left_are_dropped_and_can_be_gone_on_with() -> None:
    state, lists = BrokerState(), InDoubtLists()
    for number in range(1, 2 * PAGE):
        for vhost in range(MAX_KEPT + 3):
            prepared(state, number + vhost * 10_000, f"v{vhost}")
    firsts = [lists.page(state, f"v{vhost}", b"", LIMIT_BYTES) for vhost in range(MAX_KEPT + 3)]
    assert all(more for more, _ in firsts)
    assert len(lists._rests) == MAX_KEPT
    for vhost in (0, MAX_KEPT + 2):  # the first one was dropped, the last one is kept
        more, page = lists.page(state, f"v{vhost}", xid(PAGE + vhost * 10_000).encode(), LIMIT_BYTES)
        assert (more, page[6:12]) == (False, f"{PAGE + 1 + vhost * 10_000:06}".encode())
