"""Each way to lose, tear, double, reorder or alter messages, made by hand, must bring its violation, and no other."""

from __future__ import annotations

import attrs
import pytest

from tests.unit.client.verdicts.logs import RESOLVED, UNKNOWN, A, B, Judged, Logs, coin, plain, with_a_transfer
from understudy.client.verdicts import (
    COMMITTED,
    ROLLED_BACK,
    BrokerContent,
    Case,
    Event,
    Kind,
    LogError,
    QueueContent,
)


@pytest.fixture
def logs() -> Logs:
    return with_a_transfer()


def wrong(judged: Judged) -> dict[str, tuple[str, ...]]:
    return judged.wrong


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
    assert verdict.of(Kind.LOST) == ("m/1",)
    assert verdict.found == 10


def test_a_committed_transaction_is_lost_whole(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/0"), coin("m/1")])
    assert verdict.of(Kind.CONTRADICTED) == ("t",)
    assert verdict.of(Kind.LOST) == ("t/0", "t/1")
    assert verdict.minted == verdict.found, "the money alone would not have shown it"
    assert not verdict.holds


def test_published_but_not_acknowledged_is_partial_and_doubled(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/0"), coin("m/1")], account_1=[coin("t/0", B, 4), coin("t/1", B, 6)])
    assert wrong(verdict) == {"partial": ("t",), "doubled": ("m/0",)}
    assert verdict.found == 30


def test_acknowledged_but_not_published_is_partial(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/1")])
    assert verdict.of(Kind.PARTIAL) == ("t",)
    assert verdict.of(Kind.LOST) == ("t/0", "t/1")
    assert verdict.of(Kind.CONTRADICTED) == ()


def test_the_same_stamp_twice_at_the_end(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/1")], account_1=[coin("t/0", B, 4), coin("t/1", B, 6), coin("t/1", B, 6)])
    assert wrong(verdict) == {"doubled": ("t/1",)}
    assert verdict.found == 26


def test_the_same_stamp_in_two_queues(logs: Logs) -> None:
    verdict = logs.against(account_0=[coin("m/1"), coin("t/1", A, 6)], account_1=[coin("t/0", B, 4), coin("t/1", B, 6)])
    assert wrong(verdict) == {"altered": ("t/1",)}
    assert (verdict.minted, verdict.found) == (20, 26)


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
        assert verdict.of(Kind.UNRESOLVED) == ("t",)
        assert verdict.of(Kind.CONTRADICTED) == ()
        assert not verdict.holds


def test_an_answer_that_is_no_outcome_resolves_nothing() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], UNKNOWN)
    logs.entry(Event.RESOLVED, tx="t", outcome="expired", questions=1)
    assert logs.against(account_0=[coin("m/0"), coin("m/1")]).of(Kind.UNRESOLVED) == ("t",)


def test_an_unresolved_transaction_may_still_be_torn() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B, 5), coin("t/1", B, 5)], UNKNOWN)
    assert logs.against(account_0=[coin("m/1")], account_1=[coin("t/0", B, 5)]).of(Kind.PARTIAL) == ("t",)


def test_resolved_as_committed_counts_like_an_answer() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], UNKNOWN, RESOLVED)
    assert logs.against(account_0=[coin("m/1")], account_1=[coin("t/0", B)]).holds
    assert logs.against(account_0=[coin("m/0"), coin("m/1")]).of(Kind.CONTRADICTED) == ("t",)


def test_told_rolled_back_but_done() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], ROLLED_BACK)
    assert logs.against(account_0=[coin("m/0"), coin("m/1")]).holds
    verdict = logs.against(account_0=[coin("m/1")], account_1=[coin("t/0", B)])
    assert wrong(verdict) == {"contradicted": ("t",), "uncommitted": ("t/0",)}
    assert verdict.minted == verdict.found


def test_told_rolled_back_but_half_done() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], ROLLED_BACK)
    verdict = logs.against(account_0=[coin("m/0"), coin("m/1")], account_1=[coin("t/0", B)])
    assert wrong(verdict) == {"partial": ("t",), "doubled": ("m/0",), "uncommitted": ("t/0",)}
    assert verdict.found == 30


def test_told_two_outcomes() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], ROLLED_BACK, RESOLVED)
    assert logs.against(account_0=[coin("m/1")], account_1=[coin("t/0", B)]).of(Kind.CONTRADICTED) == ("t",)


def test_delivered_though_never_committed() -> None:
    logs = Logs()
    logs.tx("t", [coin("m/0")], [coin("t/0", B)], ROLLED_BACK)
    logs.got(coin("t/0", B), client="d")
    logs.got(coin("x/0", B), client="d")
    assert logs.against(account_0=[coin("m/0"), coin("m/1")]).of(Kind.UNCOMMITTED) == ("t/0", "x/0")


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


def test_delivered_as_new_after_any_delivery_to_the_same_client(logs: Logs) -> None:
    rest = {"account_0": [coin("m/1")], "account_1": [coin("t/0", B, 4), coin("t/1", B, 6)]}
    logs.got(coin("m/1"), client="d")
    logs.got(coin("t/1", B, 6), fresh=False, client="d")
    assert logs.against(**rest).holds, "another client may have had it before"
    logs.got(coin("t/1", B, 6), client="d")
    assert wrong(logs.against(**rest)) == {"stale": ("t/1",)}


def test_read_as_new_at_the_end_after_any_delivery(logs: Logs) -> None:
    logs.got(coin("m/1"), fresh=False, client="d")
    first = QueueContent(count=1, messages=(coin("m/1"),))
    second = QueueContent.of([coin("t/0", B, 4), coin("t/1", B, 6)])

    def judged(*fresh: str, second_fresh: tuple[str, ...] = ()) -> Judged:
        queues = {A: attrs.evolve(first, fresh=fresh), B: attrs.evolve(second, fresh=second_fresh)}
        return Judged(Case(history=logs.history, content=BrokerContent(broker="a client", queues=queues)))

    assert judged(second_fresh=("t/0", "t/1")).holds, "no client has had these"
    assert wrong(judged("m/1")) == {"stale": ("m/1",)}


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
        _ = logs.history


def test_an_outcome_of_a_transaction_that_was_never_begun(logs: Logs) -> None:
    logs.entry(Event.COMMITTED, tx="never")
    with pytest.raises(LogError, match="never began"):
        _ = logs.history


def test_an_entry_that_is_missing(logs: Logs) -> None:
    logs.entry(Event.LOST, why="")
    logs._entries.pop(-2)
    with pytest.raises(LogError, match="goes on with entry"):
        _ = logs.history


def test_an_id_that_is_used_twice(logs: Logs) -> None:
    logs.tx("u", [], [coin("t/0", B)], COMMITTED)
    with pytest.raises(LogError, match="was sent before"):
        _ = logs.history


def test_a_plain_message_is_worth_nothing(logs: Logs) -> None:
    logs.plain(coin("p/0"))
    with pytest.raises(LogError, match="outside of transactions"):
        _ = logs.history


# -- outside of transactions ----------------------------------------------------------------------------------------------


@pytest.fixture
def plains() -> Logs:
    """p/0 and p/1 were confirmed, p/2 was sent, p/3 was refused; all into account-1."""
    logs = Logs()
    logs.plain(plain("p/0", B), plain("p/1", B))
    logs.plain(plain("p/2", B), told=None)
    logs.plain(plain("p/3", B), told=Event.REFUSED)
    return logs


MINTED = [coin("m/0"), coin("m/1")]


def test_what_was_not_confirmed_may_be_there_or_not(plains: Logs) -> None:
    there = [plain("p/0", B), plain("p/1", B)]
    assert plains.against(account_0=MINTED, account_1=there).holds
    assert plains.against(account_0=MINTED, account_1=[*there, plain("p/2", B)]).holds


def test_a_confirmed_message_is_lost(plains: Logs) -> None:
    assert wrong(plains.against(account_0=MINTED, account_1=[plain("p/1", B)])) == {"lost": ("p/0",)}


def test_a_confirmed_message_was_taken(plains: Logs) -> None:
    plains.entry(Event.ACKNOWLEDGED, "q", messages=(plain("p/0", B),))
    assert plains.against(account_0=MINTED, account_1=[plain("p/1", B)]).holds
    there = [plain("p/0", B), plain("p/1", B)]
    assert plains.against(account_0=MINTED, account_1=there).holds, "no broker has answered that acknowledgement"


def test_a_refused_message_is_there(plains: Logs) -> None:
    there = [plain("p/0", B), plain("p/1", B), plain("p/3", B)]
    assert wrong(plains.against(account_0=MINTED, account_1=there)) == {"refused": ("p/3",)}


def test_plain_messages_out_of_order(plains: Logs) -> None:
    there = [plain("p/1", B), plain("p/0", B)]
    assert wrong(plains.against(account_0=MINTED, account_1=there)) == {"unordered": ("p/0",)}


def test_one_message_in_two_queues() -> None:
    logs = Logs()
    logs.plain(plain("p/0", A), plain("p/0", B))
    assert logs.against(account_0=[*MINTED, plain("p/0", A)], account_1=[plain("p/0", B)]).holds
    (lost,) = logs.against(account_0=MINTED, account_1=[plain("p/0", B)]).violations
    assert (lost.kind, lost.message, lost.queue) == (Kind.LOST, "p/0", A)
