"""The demo's proof must fail when something is wrong: each way to lose, tear or double money, made by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from understudy.client.demo.client_log import BEGUN, COMMIT_SENT, COMMITTED, GOT, RESOLVED, ROLLED_BACK, UNKNOWN, Coin
from understudy.client.demo.ledger import Ledger, LogError
from understudy.client.demo.verdict import Verdict, judge

A, B = "account-0", "account-1"


def coin(stamp: str, account: str = A, amount: int = 10) -> Coin:
    return Coin(stamp, account, amount)


class Logs:
    """Client logs, written by hand; ``mint`` has put m/0 and m/1 into account-0, 10 each."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []
        self._now = 0.0
        self.tx("mint", [], [coin("m/0"), coin("m/1")], COMMITTED)

    def entry(self, event: str, client: str, **facts: Any) -> None:
        self._now += 1.0
        self._entries.append({"t": self._now, "client": client, "event": event, **facts})

    def got(self, one: Coin, *, fresh: bool = True, client: str = "c") -> None:
        self.entry(GOT, client, coin=list(one), fresh=fresh)

    def tx(self, name: str, takes: Sequence[Coin], makes: Sequence[Coin], *told: str, client: str = "c") -> None:
        """One transaction, told what: the entries that follow ``begun``. RESOLVED stands for "resolved: committed"."""
        self.entry(BEGUN, client, tx=name, takes=[list(one) for one in takes], makes=[list(one) for one in makes])
        self.entry(COMMIT_SENT, client, tx=name)
        for event in told:
            if event == RESOLVED:
                self.entry(RESOLVED, client, tx=name, outcome=COMMITTED, questions=1)
            elif event == ROLLED_BACK:
                self.entry(ROLLED_BACK, client, tx=name, by="broker", why="")
            else:
                self.entry(event, client, tx=name)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._entries)

    def against(self, **queues: Sequence[Coin]) -> Verdict:
        """``account_0=[...]``, ``account_1=[...]``."""
        contents: Mapping[str, Sequence[Coin]] = {A: queues.get("account_0", ()), B: queues.get("account_1", ())}
        return judge(Ledger(self), contents)


@pytest.fixture
def logs() -> Logs:
    """A transfer t of m/0 from account-0 to account-1, in two coins, that was committed; m/1 stays."""
    logs = Logs()
    logs.got(coin("m/0"))
    logs.tx("t", [coin("m/0")], [coin("t/0", B, 4), coin("t/1", B, 6)], COMMITTED)
    return logs


def wrong(verdict: Verdict) -> dict[str, tuple[str, ...]]:
    return dict(verdict.wrong())


def test_all_is_well(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/1")], account_1=[coin("t/0", B, 4), coin("t/1", B, 6)])
    assert verdict.holds
    assert (verdict.minted, verdict.found) == (20, 20)


def test_a_coin_is_lost_and_its_transaction_torn(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/1")], account_1=[coin("t/0", B, 4)])
    assert wrong(verdict) == {"lost": ("t/1",), "partial": ("t",)}
    assert (verdict.minted, verdict.found) == (20, 14)
    assert not verdict.holds


def test_a_coin_is_lost_that_nobody_touched(logs: Logs) -> None:
    verdict = logs.against(account_1=[coin("t/0", B, 4), coin("t/1", B, 6)])
    assert verdict.lost == ("m/1",)
    assert verdict.found == 10


def test_a_committed_transaction_is_lost_whole(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/0"), coin("m/1")])
    assert verdict.contradicted == ("t",)
    assert verdict.lost == ("t/0", "t/1")
    assert verdict.minted == verdict.found, "the money alone would not have shown it"
    assert not verdict.holds


def test_published_but_not_acknowledged_is_partial_and_doubled(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/0"), coin("m/1")], account_1=[coin("t/0", B, 4), coin("t/1", B, 6)])
    assert wrong(verdict) == {"partial": ("t",), "doubled": ("m/0",)}
    assert verdict.found == 30


def test_acknowledged_but_not_published_is_partial(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/1")])
    assert verdict.partial == ("t",)
    assert verdict.lost == ("t/0", "t/1")
    assert verdict.contradicted == ()


def test_the_same_stamp_twice_at_the_end(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/1")], account_1=[coin("t/0", B, 4), coin("t/1", B, 6), coin("t/1", B, 6)])
    assert wrong(verdict) == {"doubled": ("t/1",)}
    assert verdict.found == 26


def test_the_same_stamp_in_two_queues(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/1"), coin("t/1", A, 6)], account_1=[coin("t/0", B, 4), coin("t/1", B, 6)])
    assert verdict.doubled == ("t/1",)
    assert verdict.altered == ("t/1",)


def test_consumed_in_two_committed_transactions(logs: Logs) -> None:
    logs.tx("u", [coin("m/0")], [coin("u/0", A)], COMMITTED, client="d")
    verdict = logs.against(account_0=[coin("m/1"), coin("u/0")], account_1=[coin("t/0", B, 4), coin("t/1", B, 6)])
    assert wrong(verdict) == {"doubled": ("m/0",)}
    assert (verdict.minted, verdict.found) == (20, 30)


def test_wrong_total_through_another_amount(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/1", A, 11)], account_1=[coin("t/0", B, 4), coin("t/1", B, 6)])
    assert wrong(verdict) == {"altered": ("m/1",)}
    assert (verdict.minted, verdict.found) == (20, 21)


def test_a_total_alone_is_enough_to_fail() -> None:
    verdict = Logs().against(account_0=[coin("m/0"), coin("m/1")])
    assert verdict.holds
    unbalanced = Logs()
    unbalanced.tx("t", [coin("m/0")], [coin("t/0", B, 11)], COMMITTED)
    verdict = unbalanced.against(account_0=[coin("m/1")], account_1=[coin("t/0", B, 11)])
    assert wrong(verdict) == {}
    assert not verdict.holds


@pytest.mark.parametrize("told", [(), (UNKNOWN,)])
def test_an_unknown_outcome_that_was_never_resolved(told: tuple[str, ...]) -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], *told)
    for queues in (
        {"account_0": [coin("m/0"), coin("m/1")]},
        {"account_0": [coin("m/1")], "account_1": [coin("t/0", B)]},
    ):
        verdict = logs.against(**queues)
        assert verdict.unresolved == ("t",)
        assert verdict.contradicted == ()
        assert not verdict.holds


def test_an_answer_that_is_no_outcome_resolves_nothing() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], UNKNOWN)
    logs.entry(RESOLVED, "c", tx="t", outcome="expired", questions=1)
    assert logs.against(account_0=[coin("m/0"), coin("m/1")]).unresolved == ("t",)


def test_an_unresolved_transaction_may_still_be_torn() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B, 5), coin("t/1", B, 5)], UNKNOWN)
    assert logs.against(account_0=[coin("m/1")], account_1=[coin("t/0", B, 5)]).partial == ("t",)


def test_resolved_as_committed_counts_like_an_answer() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], UNKNOWN, RESOLVED)
    assert logs.against(account_0=[coin("m/1")], account_1=[coin("t/0", B)]).holds
    assert logs.against(account_0=[coin("m/0"), coin("m/1")]).contradicted == ("t",)


def test_told_rolled_back_but_done() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], ROLLED_BACK)
    assert logs.against(account_0=[coin("m/0"), coin("m/1")]).holds
    verdict = logs.against(account_0=[coin("m/1")], account_1=[coin("t/0", B)])
    assert wrong(verdict) == {"contradicted": ("t",)}
    assert verdict.minted == verdict.found


def test_told_rolled_back_but_half_done() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], ROLLED_BACK)
    verdict = logs.against(account_0=[coin("m/0"), coin("m/1")], account_1=[coin("t/0", B)])
    assert wrong(verdict) == {"partial": ("t",), "doubled": ("m/0",)}
    assert verdict.found == 30


def test_told_two_outcomes() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], ROLLED_BACK, RESOLVED)
    assert logs.against(account_0=[coin("m/1")], account_1=[coin("t/0", B)]).contradicted == ("t",)


def test_delivered_though_never_committed() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], ROLLED_BACK)
    logs.got(coin("t/0", B), client="d")
    logs.got(coin("x/0", B), client="d")
    assert logs.against(account_0=[coin("m/0"), coin("m/1")]).uncommitted == ("t/0", "x/0")


def test_a_coin_that_nobody_made(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/1"), coin("x/0")], account_1=[coin("t/0", B, 4), coin("t/1", B, 6)])
    assert wrong(verdict) == {"foreign": ("x/0",)}


def test_delivered_as_new_twice(logs: Logs) -> None:
    logs.got(coin("m/1"))
    logs.got(coin("m/1"), fresh=False, client="d")
    rest = {"account_0": [coin("m/1")], "account_1": [coin("t/0", B, 4), coin("t/1", B, 6)]}
    assert logs.against(**rest).holds
    logs.got(coin("m/1"), client="d")
    assert wrong(logs.against(**rest)) == {"stale": ("m/1",)}


def test_out_of_order_within_a_transaction(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/1")], account_1=[coin("t/1", B, 6), coin("t/0", B, 4)])
    assert wrong(verdict) == {"unordered": ("t/0",)}


def test_out_of_order_between_transactions_of_a_client(logs: Logs) -> None:
    logs.tx("u", [coin("m/1")], [coin("u/0", B)], COMMITTED)
    assert logs.against(account_1=[coin("t/0", B, 4), coin("t/1", B, 6), coin("u/0", B)]).holds
    verdict = logs.against(account_1=[coin("t/0", B, 4), coin("u/0", B), coin("t/1", B, 6)])
    assert wrong(verdict) == {"unordered": ("t/1",)}


def test_clients_have_no_order_between_them(logs: Logs) -> None:
    logs.tx("u", [coin("m/1")], [coin("u/0", B)], COMMITTED, client="d")
    assert logs.against(account_1=[coin("u/0", B), coin("t/0", B, 4), coin("t/1", B, 6)]).holds


def test_a_replayed_transaction_is_refused(logs: Logs) -> None:
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], COMMITTED)
    with pytest.raises(LogError, match="began t twice"):
        logs.against()


def test_an_outcome_of_a_transaction_that_was_never_begun(logs: Logs) -> None:
    logs.entry(COMMITTED, "c", tx="never")
    with pytest.raises(LogError, match="never began"):
        logs.against()
