"""A run proves something only if each client has shown its part; the negative control only if a verdict saw the bug."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.unit.client.stress.report.test_figures import history
from tests.unit.client.stress.report.test_page import SETTING
from understudy.client.stress.command import exit_code
from understudy.client.stress.libraries.connection import Session
from understudy.client.stress.report.summary import Role, Run, make_report, report_text
from understudy.client.stress.workloads.by_name import WORKLOADS, Cast
from understudy.client.stress.workloads.fifo import Consumer
from understudy.client.verdicts import BrokerContent, Case, ClientLog, Event, History, Kind, Message, Violation
from understudy.client.verdicts.evidence.history import Receipt, Sent, Transaction

COIN = Message("confirmer-02.1-0/0", "fifo-0")
SEEN = History(
    transactions={
        "producer-01-0": Transaction(name="producer-01-0", client="producer-01", answered_s=11.0),
        "producer-04-0": Transaction(name="producer-04-0", client="producer-04", unknown=True),
    },
    sent={(COIN.id, COIN.queue): Sent("confirmer-02.1", 0, COIN)},
    confirmed={(COIN.id, COIN.queue)},
    received=[Receipt("consumer-00", COIN, False)],
)
LOST = Violation(kind=Kind.LOST, promise="G4", text="lost", message="m")


def report(
    seen: History, *roles: Role, mutation: str = "", violations: Sequence[Violation] = (), problems: Sequence[str] = ()
) -> dict[str, Any]:
    setting = SETTING | ({"mutation": mutation} if mutation else {})
    run = Run(
        setting=setting, began_s=10.0, ended_s=20.0, faults=[], moments=[], problems=problems, equal=True, roles=roles
    )
    return make_report(run, Case(history=seen, content=BrokerContent.of("a client", {"q": []})), violations)


def role(client: str, proof: Event) -> Role:
    return Role(client=client, library="kombu", proof=proof)


def test_clients_that_have_shown_their_part() -> None:
    made = report(
        SEEN,
        role("producer-01", Event.COMMITTED),
        role("confirmer-02", Event.CONFIRMED),
        role("consumer-00", Event.RECEIVED),
    )
    assert made["ok"]


@pytest.mark.parametrize(
    ("client", "proof"),
    [("producer-04", Event.COMMITTED), ("confirmer-05", Event.CONFIRMED), ("consumer-03", Event.RECEIVED)],
)
def test_a_client_that_has_shown_nothing_is_named_with_its_library(client: str, proof: Event) -> None:
    made = report(SEEN, role("producer-01", Event.COMMITTED), role(client, proof))
    assert made["problems"] == [
        f"client {client} (kombu) has no message or transaction that was {proof}: its part is not proved"
    ]


@pytest.mark.parametrize("clients", range(1, 20))
def test_every_consumer_has_a_producer(clients: int, tmp_path: Path) -> None:
    """Else it could not show its part."""

    def session(number: int, name: str) -> Session:
        return Session(lambda *_: pytest.fail("no broker is asked"), [("h", 1)], ("u", "p"), name, number)  # type: ignore[list-item]

    with ExitStack() as logs:

        def log(name: str) -> ClientLog:
            return logs.enter_context(ClientLog(tmp_path / name, name))

        cast = Cast(clients=clients, random=Random(1), session=session, log=log, pause_s=1.0)
        workers: list[Any] = WORKLOADS["fifo"].workers(cast)
    consumed = {each._queue for each in workers if isinstance(each, Consumer)}
    assert consumed <= {each._queue for each in workers if not isinstance(each, Consumer)}


def test_a_known_bug_that_a_verdict_reports_is_seen() -> None:
    made = report(history((11.0, 11.1)), mutation="half-a-transaction", violations=[LOST])
    assert made["bug_seen"]
    assert not made["ok"]
    assert exit_code(made, "half-a-transaction") == 0
    assert "SEEN" in report_text(made)


@pytest.mark.parametrize("problems", [(), ("not live: no commit within 60 s",)], ids=["held", "not live"])
def test_a_known_bug_that_no_verdict_reports_is_not_seen(problems: Sequence[str]) -> None:
    made = report(history((11.0, 11.1)), mutation="half-a-transaction", problems=problems)
    assert made["problems"][-1] == "the known bug half-a-transaction was not seen: no verdict reports a violation"
    assert not made["ok"]
    assert exit_code(made, "half-a-transaction") == 1


def test_mutated_brokers_that_cannot_start_have_shown_no_bug() -> None:
    assert exit_code({"ok": False, "problems": ["the run could not be carried out"]}, "half-a-transaction") == 1


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 1)])
def test_without_a_known_bug_everything_must_hold(ok: bool, code: int) -> None:
    assert exit_code({"ok": ok}, "") == code
