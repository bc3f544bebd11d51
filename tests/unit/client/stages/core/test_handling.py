"""The order of the steps of one delivery, and what becomes of a message whose stage fails."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from pamqp import decode, encode

from tests.unit.client.stages.place import CHARGE, Edge, Order, delivery, rules
from understudy.client.stages import Refuse, Retry
from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core import steps as do
from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.core.letter import Action, Letter
from understudy.client.stages.core.sends import derived_id
from understudy.client.stages.definitions.codec import Codec

ONCE = ["BeginDatabase", "Claim", "Call", "Store", "CommitDatabase", "Settle", "Mark"]


def fails(error: Exception) -> Any:
    def call(_: do.Call) -> None:
        raise error

    return call


def test_with_an_inbox_the_database_commits_between_the_outbox_and_the_broker() -> None:
    edge = Edge(Call=Order(8))
    assert edge.run(rules(), delivery()) == ONCE
    sent = edge.last(do.Settle).envelopes
    assert sent == edge.last(do.Store).envelopes
    assert [(each.queue, each.body) for each in sent] == [("charge", b'{"number":8}')]
    assert edge.last(do.Mark).ids == (sent[0].id,)
    assert not edge.last(do.Settle).surely
    assert edge.last(do.Call).message == Order(7)


def test_the_broker_is_asked_right_before_the_database_commits() -> None:
    edge = Edge(Call=Order(8), Precheck="")
    given = rules(once=False, precheck=True)
    assert edge.run(given, delivery()) == ["BeginDatabase", "Call", "Precheck", "CommitDatabase", "Settle"]
    assert edge.last(do.Precheck).brings
    edge = Edge(Call=None, Precheck="")
    assert edge.run(rules(precheck=True), delivery()) == [*ONCE[:3], "Precheck", "CommitDatabase", "Settle"]
    assert not edge.last(do.Precheck).brings


def test_a_commit_that_would_be_refused_waits_with_the_message_in_hand_and_costs_no_attempt() -> None:
    answers = ["below", "below", "", ""]
    edge = Edge(Call=Order(8), Precheck=lambda _: answers.pop(0))
    names = edge.run(rules(once=False, precheck=True, retry=Retry(1)), delivery())
    assert names == [
        *("BeginDatabase", "Call", "Precheck", "RollbackDatabase"),
        *("Wait", "Precheck", "Wait", "Precheck"),
        *("BeginDatabase", "Call", "Precheck", "CommitDatabase", "Settle"),
    ]
    assert [each.attempt for each in edge.steps if isinstance(each, do.Call)] == [1, 1]
    assert [each.queue for each in edge.last(do.Settle).envelopes] == ["charge"]


@pytest.mark.parametrize("database", [False, True])
def test_what_no_outbox_holds_is_sent_surely(database: bool) -> None:
    edge = Edge(Call=Order(8), Precheck="")
    edge.run(rules(once=False, database=database), delivery())
    assert edge.last(do.Settle).surely
    edge = Edge(Call=None, Precheck="")
    edge.run(rules(once=False, database=database), delivery())
    assert not edge.last(do.Settle).surely  # nothing is sent, so no round trip is spent


def test_with_xa_both_commit_in_one_step_and_no_table_is_written() -> None:
    edge = Edge(Call=Order(8))
    assert edge.run(rules(once=False, xa=True), delivery()) == ["BeginDatabase", "Call", "CommitJointly"]
    assert [each.queue for each in edge.last(do.CommitJointly).envelopes] == ["charge"]


def test_with_xa_a_refused_commit_is_a_failed_attempt() -> None:
    edge = Edge(Call=Order(8), CommitJointly=ValueError("refused"))
    names = edge.run(rules(once=False, xa=True), delivery())
    assert names == ["BeginDatabase", "Call", "CommitJointly", "RollbackDatabase", "Now", "Settle"]
    assert [each.queue for each in edge.last(do.Settle).envelopes] == ["reserve"]


def test_a_stage_without_database_has_no_step_of_one() -> None:
    edge = Edge(Call=Order(8))
    assert edge.run(rules(once=False, database=False), delivery()) == ["Call", "Settle"]


def test_a_stage_that_sends_nothing_writes_nothing_into_the_outbox() -> None:
    edge = Edge()
    assert edge.run(rules(), delivery()) == ["BeginDatabase", "Claim", "Call", "CommitDatabase", "Settle"]


def test_a_delivery_that_was_processed_is_not_called_again_and_its_rest_is_sent() -> None:
    left = Envelope(id="e1", queue="charge", stage="charge", body=b"{}", headers={})
    edge = Edge(Claim=False, ReadUnsent=[left])
    names = edge.run(rules(), delivery())
    assert names == ["BeginDatabase", "Claim", "ReadUnsent", "RollbackDatabase", "Settle", "Mark"]
    assert edge.last(do.Settle).envelopes == (left,)


@pytest.mark.parametrize("step", ["Call", "Store", "CommitDatabase"])
def test_a_failure_rolls_back_and_the_message_comes_again_later(step: str) -> None:
    edge = Edge(**({"Call": Order(8)} | {step: ValueError("no")}))
    names = edge.run(rules(), delivery())
    assert names == [*ONCE[: ONCE.index(step) + 1], "RollbackDatabase", "Now", "Settle"]
    (again,) = edge.last(do.Settle).envelopes
    assert (again.id, again.queue, again.body, again.after_ms) == ("m1", "reserve", delivery().body, 1_000)
    assert again.headers == {headers.FLOW: "checkout", headers.FAILURES: 1, headers.FIRST_FAILED: 1_000}


def test_a_stage_that_sends_and_fails_sends_nothing() -> None:
    def call(step: do.Call) -> None:
        step.sends.send(CHARGE, Order(9))
        raise ValueError("no")

    edge = Edge(Call=call)
    edge.run(rules(), delivery())
    assert [each.queue for each in edge.last(do.Settle).envelopes] == ["reserve"]


@pytest.mark.parametrize("step", ["BeginDatabase", "Claim"])
def test_a_database_that_cannot_begin_costs_no_attempt(step: str) -> None:
    edge = Edge(**{step: OSError("away")})
    assert edge.run(rules(), delivery()) == [*ONCE[: ONCE.index(step) + 1], "RollbackDatabase", "GiveBack"]


def test_the_seventh_failure_makes_a_dead_letter_that_says_why() -> None:
    kept: dict[str, Any] = {
        headers.FAILURES: 6,
        headers.FIRST_FAILED: 5,
        headers.FLOW: "checkout",
        headers.TRACE_ID: "t",
        "x-death": [],
        "x-delivery-count": 19,
        "x-acquired-count": 30,
        headers.TRANSACTION: "i1",
    }
    edge = Edge(Call=fails(ValueError("the bank is away")))
    edge.run(rules(application="shop", version="7.1"), delivery(headers=kept))
    assert edge.last(do.Settle).surely
    (dead,) = edge.last(do.Settle).envelopes
    assert (dead.id, dead.queue, dead.body, dead.after_ms) == ("m1", "reserve.dead", delivery().body, 0)
    assert len(dead.headers.pop(headers.STACK)) == 16
    assert dead.headers == {
        headers.FLOW: "checkout",
        headers.TRACE_ID: "t",
        headers.FAILURES: 7,
        headers.STAGE: "reserve",
        headers.APPLICATION: "shop",
        headers.VERSION: "7.1",
        headers.REFUSED: False,
        headers.EXCEPTION: "ValueError",
        headers.EXCEPTION_TEXT: "the bank is away",
        headers.FIRST_FAILED: 5,
        headers.LAST_FAILED: 1_000,
    }


def test_a_count_of_another_program_that_is_too_large_can_be_written_again() -> None:
    """The number above it could not, and its worker ended, and each worker after it."""
    edge = Edge(Call=fails(ValueError("no")))
    edge.run(rules(), delivery(headers={headers.FAILURES: (1 << 63) - 1, headers.ROUNDS: (1 << 63) - 1}))
    (dead,) = edge.last(do.Settle).envelopes
    assert dead.queue == "reserve.dead"
    letter = Letter(queue=dead.queue, delivery=delivery(headers=dead.headers))
    sent = letter.reissued("reserve", Action(by="ann", at_ms=1, token="0badcafe"), again=False)
    for each in (dead.headers, sent.headers):
        assert decode.field_table(encode.field_table(each))[1] == each


def test_a_blocking_stage_waits_and_calls_again_with_the_message_in_hand() -> None:
    attempts: list[int] = []

    def call(step: do.Call) -> None:
        attempts.append(step.attempt)
        if len(attempts) < 3:
            raise ValueError("no")

    edge = Edge(Call=call)
    names = edge.run(rules(retry=Retry(blocking=True, jitter=0), once=False, database=False), delivery())
    assert names == ["Call", "Wait", "Call", "Wait", "Call", "Settle"]
    assert attempts == [1, 2, 3]
    assert [each.ms for each in edge.steps if isinstance(each, do.Wait)] == [1_000, 2_000]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"body": b"{}"}, "does not decode"),
        ({"body": b"\xff"}, "does not decode"),
        ({"stage": "ship"}, "is for stage 'ship'"),
        ({"headers": {headers.FLOW: "other"}}, "flow 'other' has no stage 'reserve'"),
        ({"headers": {"x-delivery-count": 20}}, "20 workers, or their connections, ended"),
        ({"anonymous": True}, "has no message_id"),
        ({"id": "a\0b"}, "the message's message_id can have no NUL and 400 octets at most: 'a\\x00b'"),
        ({"headers": {headers.AGAIN: "\0"}}, "message_id and its header x-stages-again can have no NUL"),
        ({"headers": {headers.AGAIN: "ä" * 200}}, "400 octets at most"),
    ],
)
def test_a_message_that_no_attempt_can_help_is_a_dead_letter_at_once(changes: dict[str, Any], text: str) -> None:
    edge = Edge()
    assert edge.run(rules(), delivery(**changes)) == ["Now", "Settle"]
    (dead,) = edge.last(do.Settle).envelopes
    assert dead.queue == "reserve.dead"
    assert dead.headers[headers.REFUSED] is True
    assert text in dead.headers[headers.EXCEPTION_TEXT]


class Strict(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        raise KeyError("number")


class Model:
    """A model of pydantic, whose validator fails."""

    def model_dump_json(self) -> str: ...  # type: ignore[empty-body]

    @classmethod
    def model_validate_json(cls, _: bytes) -> Model:
        raise WordlessError


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        (Strict, b'{"number": 7}', "the body does not decode: KeyError: 'number'"),
        (Model, b"{}", "WordlessError: (its text cannot be had: RuntimeError)"),
        (Any, b"[" * 5_000, "the body does not decode: RecursionError: "),
    ],
)
def test_whatever_error_a_body_raises_makes_a_dead_letter_at_once(kind: Any, body: bytes, text: str) -> None:
    """An error that was no ValueError ended the whole worker, and each worker after it."""
    decode = Codec(kind, "stage 'reserve'").decode
    edge = Edge()
    assert edge.run(rules(decode=decode), delivery(body=body)) == ["Now", "Settle"]
    (dead,) = edge.last(do.Settle).envelopes
    assert dead.queue == "reserve.dead"
    assert text in dead.headers[headers.EXCEPTION_TEXT]
    with pytest.raises(ValueError):  # noqa: PT011  # replies and `dlq edit` expect no other
        decode(body)


def test_an_error_while_a_message_is_opened_makes_a_dead_letter_at_once() -> None:
    def decode(_: bytes) -> object:
        raise KeyError("number")

    edge = Edge()
    assert edge.run(rules(decode=decode), delivery()) == ["Now", "Settle"]
    assert edge.last(do.Settle).envelopes[0].headers[headers.EXCEPTION] == "KeyError"


def test_an_id_that_an_inbox_can_take_is_taken() -> None:
    edge = Edge()
    assert "Call" in edge.run(rules(), delivery(id="m" * 255, headers={headers.AGAIN: "ä" * 72}))
    assert len(edge.last(do.Claim).id.encode()) == 400
    edge = Edge()
    assert edge.run(rules(once=False, database=False), delivery(id="a\0b")) == ["Call", "Settle"]


@pytest.mark.parametrize("reply_to", ["stages.reply." + "x" * 243, "stages.reply.\0", "shop"])
def test_an_address_for_a_reply_that_no_queue_can_have_is_no_address(reply_to: str) -> None:
    """The reply of such a message could not be written: its worker ended behind the commit of the database, 20 times."""
    found: list[bool] = []
    for address in (reply_to, "stages.reply." + "x" * 242):
        edge = Edge(Call=lambda step: found.append(step.sends.reply(b"{}")))
        edge.run(rules(), delivery(headers={headers.REPLY_TO: address}))
        assert len(edge.last(do.Settle).envelopes) == sum(found)
    assert found == [False, True]


def test_a_refused_message_is_a_dead_letter_at_the_first_attempt() -> None:
    edge = Edge(Call=fails(Refuse("no amount")))
    edge.run(rules(), delivery())
    (dead,) = edge.last(do.Settle).envelopes
    assert (dead.queue, dead.headers[headers.FAILURES], dead.headers[headers.EXCEPTION_TEXT]) == (
        "reserve.dead",
        1,
        "no amount",
    )


def test_a_result_without_a_following_stage_is_refused_and_names_the_flow() -> None:
    edge = Edge(Call=Order(8))
    edge.run(rules(), delivery(headers={headers.FLOW: "last"}))
    (dead,) = edge.last(do.Settle).envelopes
    assert "no stage follows it in flow 'last'" in dead.headers[headers.EXCEPTION_TEXT]


def test_a_second_run_gives_each_message_the_same_id() -> None:
    def call(step: do.Call) -> Order:
        step.sends.send(CHARGE, Order(1))
        step.sends.send(CHARGE, Order(1))
        return Order(2)

    runs = []
    for _ in range(2):
        edge = Edge(Call=call)
        edge.run(rules(), delivery())
        runs.append([each.id for each in edge.last(do.Settle).envelopes])
    assert runs[0] == runs[1] == [derived_id("m1", "reserve", number) for number in range(3)]
    assert len(set(runs[0])) == 3


class WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("x" * 500), "x" * 500),
        (ValueError("x" * 70_000), "x" * 500 + " (cut: 70,000 characters)"),
        (ValueError("\udcff"), "\\udcff"),
        (WordlessError(), "(its text cannot be had: RuntimeError)"),
    ],
)
def test_a_dead_letter_has_a_text_that_a_header_can_carry(error: Exception, text: str) -> None:
    edge = Edge(Call=fails(error))
    edge.run(rules(retry=Retry(1)), delivery())
    assert edge.last(do.Settle).envelopes[0].headers[headers.EXCEPTION_TEXT] == text


def test_headers_that_are_too_large_beside_those_of_the_fault_are_left_out_and_named() -> None:
    given = {"large": "x" * 90_000, "larger": "x" * 99_000, "small": 1, headers.FLOW: "checkout"}
    edge = Edge(Call=fails(ValueError("no")))
    edge.run(rules(retry=Retry(1)), delivery(headers=given))
    found = edge.last(do.Settle).envelopes[0].headers
    assert (found[headers.CUT], found["small"], len(found["large"])) == ("larger", 1, 90_000)
    assert (found[headers.FLOW], found[headers.EXCEPTION]) == ("checkout", "ValueError")


@pytest.mark.parametrize("after", [timedelta(days=36_525), timedelta(seconds=-1), float("nan"), float("inf")])
def test_a_delay_of_a_century_is_refused_at_the_call(after: Any) -> None:
    def call(step: do.Call) -> None:
        step.sends.send(CHARGE, Order(9), after)

    edge = Edge(Call=call)
    edge.run(rules(), delivery())
    (dead,) = edge.last(do.Settle).envelopes
    assert dead.queue == "reserve.dead"
    assert "0 to 30 days are allowed" in dead.headers[headers.EXCEPTION_TEXT]


def test_a_large_header_of_the_library_s_name_is_left_out_too() -> None:
    given = {"x-stages-mine": "x" * 110_000}
    edge = Edge(Call=fails(ValueError("no")))
    edge.run(rules(), delivery(headers=given))
    assert edge.last(do.Settle).envelopes[0].headers[headers.CUT] == "x-stages-mine"
