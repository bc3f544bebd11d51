"""Dead letters: their groups, and what an operator makes of one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.stages.place import Edge, Order, delivery, rules
from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core import steps as do
from understudy.client.stages.core.envelope import Delivery
from understudy.client.stages.core.letter import Action, Letter, Wanted, grouped, stage_queue
from understudy.client.stages.dead_letters.report import group_text, ids_text, letter_text, time_of
from understudy.client.stages.looking.commands import lines_of
from understudy.client.stages.looking.findings import Passage

ACTION = Action(by="ann@host", at_ms=9_000, token="0badcafe")


def died(error: Exception, **changes: Any) -> Letter:
    """The dead letter of a message whose last attempt raises."""

    def call(_: do.Call) -> None:
        raise error

    edge = Edge(Call=call)
    edge.run(rules(application="shop", version="7"), delivery(**({"headers": {headers.FAILURES: 6}} | changes)))
    (dead,) = edge.last(do.Settle).envelopes
    carried = dead.headers | {headers.TO: dead.stage}
    return Letter(queue=dead.queue, delivery=Delivery(id=dead.id, stage=dead.stage, body=dead.body, headers=carried))


def test_letters_of_one_type_and_stack_are_one_group_whatever_their_text() -> None:
    letters = [died(ValueError("1")), died(ValueError("2"), id="m2"), died(KeyError("1"))]
    groups = grouped(letters)
    assert [(each.sample.exception, each.count) for each in groups] == [("ValueError", 2), ("KeyError", 1)]
    assert Wanted(groups=frozenset({groups[1].name})).has(letters[2])
    assert not Wanted(groups=frozenset({groups[1].name})).has(letters[0])


def test_a_letter_that_a_broker_has_moved_is_grouped_by_its_reason() -> None:
    headers_of_broker = {"x-first-death-reason": "expired"}
    letter = Letter(queue="q.dead", delivery=Delivery(id="m", stage="", body=b"", headers=headers_of_broker))
    assert grouped([letter])[0].sample.exception == "expired"


def test_a_reissued_message_keeps_its_id_and_loses_the_headers_of_its_failure() -> None:
    letter = died(ValueError("no"), headers={headers.FAILURES: 6, headers.FLOW: "checkout", "ward": 4})
    sent = letter.reissued("reserve", ACTION, again=False)
    assert (sent.id, sent.queue, sent.stage, sent.body) == ("m1", "reserve", "reserve", letter.delivery.body)
    assert sent.headers == {
        headers.TO: "reserve",
        headers.FLOW: "checkout",
        "ward": 4,
        headers.ROUNDS: 1,
        headers.REISSUED_BY: "ann@host",
        headers.REISSUED: 9_000,
    }


def test_the_rounds_survive_another_death() -> None:
    sent = died(ValueError("no")).reissued("reserve", ACTION, again=False)
    letter = died(ValueError("no"), headers=sent.headers | {headers.FAILURES: 6})
    assert letter.rounds == 1
    assert letter.reissued("reserve", ACTION, again=False).headers[headers.ROUNDS] == 2


def test_a_forced_message_is_claimed_anew_and_what_it_sends_is_new() -> None:
    sent = died(ValueError("no")).reissued("reserve", ACTION, again=True)
    ids, claims = [], []
    for arrived in (delivery(), delivery(headers=sent.headers | {headers.FLOW: "checkout"})):
        edge = Edge(Call=Order(8))
        edge.run(rules(), arrived)
        claims.append((edge.last(do.Claim).id, edge.last(do.Store).id))
        ids.append(edge.last(do.Settle).envelopes[0].id)
    assert claims == [("m1", "m1"), ("m1+0badcafe", "m1+0badcafe")]
    assert ids[0] != ids[1]


def test_an_edited_letter_keeps_its_id_and_its_fault() -> None:
    letter = died(ValueError("no"), headers={headers.FAILURES: 6, "old": 1})
    edited = letter.edited(ACTION, body=b"{}", put={"new": True}, drop=["old"])
    assert (edited.id, edited.queue, edited.body) == ("m1", "reserve.dead", b"{}")
    assert "old" not in edited.headers
    assert edited.headers["new"] is True
    assert (edited.headers[headers.EDITS], edited.headers[headers.EXCEPTION_TEXT]) == (1, "no")
    with pytest.raises(ValueError, match="x-stages-rounds"):
        letter.edited(ACTION, body=None, put={headers.ROUNDS: 0}, drop=())


@pytest.mark.parametrize("number", [1 << 62, 1 << 60, -(1 << 62), 10**17, 253_402_300_800_000])
def test_a_number_that_is_no_time_is_shown_as_it_is(number: int) -> None:
    """`understudy dlq list` and `show` ended with a traceback."""
    made = died(ValueError("no"), headers={headers.FAILURES: 6, headers.FIRST_FAILED: number, "x-due-ms": number})
    assert f"x-due-ms: {number}  ({number} ms)" in letter_text(made)
    assert (f"{number} ms to " in group_text(grouped([made])[0])) is (number > 0)
    assert time_of(1_764_288_000_000) == "2025-11-28 00:00:00Z"


def test_no_text_of_a_letter_moves_the_cursor_of_a_terminal() -> None:
    """`understudy stages show` printed the exception's text as it was, and all commands the id."""
    evil = "\x1b[2J"
    made = died(ValueError(evil), id=f"m{evil}", headers={headers.FAILURES: 6, f"h{evil}": evil, "x-stages-flow": ""})
    stopped = Passage(flow_id="f", flow="checkout", passed=[], outbox=[], parked=[], letters=[made])
    texts = [letter_text(made), group_text(grouped([made])[0]), ids_text([made.delivery.id]), *lines_of(stopped)]
    assert "\x1b" not in "".join(texts)
    assert r"dead letter m\x1b[2J: ValueError: \x1b[2J" in texts[-1]


def test_a_passage_s_dead_letter_may_tell_a_number_that_is_no_time() -> None:
    """`understudy stages show` ended with a traceback."""
    made = Letter(queue="q.dead", delivery=Delivery(id="m", stage="", body=b"", headers={headers.LAST_FAILED: 1 << 62}))
    stopped = Passage(flow_id="f", flow="", passed=[], outbox=[], parked=[], letters=[made])
    assert lines_of(stopped)[1].startswith(f"{1 << 62} ms  ")
    assert time_of(1_764_288_000_012, exact=True) == "2025-11-28T00:00:00.012Z"


def test_only_the_name_of_a_dead_letter_queue_tells_its_stage() -> None:
    assert (stage_queue("a.dead"), stage_queue("a")) == ("a", "")
