"""What `understudy step-down` says before it begins, and when it asks."""

from __future__ import annotations

import io
from typing import Any

import pytest
import typer

from understudy.broker.command_line.amqp_address import AmqpAddress
from understudy.broker.log.reading_time import LEAST_MEASURED_BYTES, USUAL_BYTES_PER_S, ReadingTime
from understudy.ha import operator_cli
from understudy.ha.step_down_cost import ASK_FROM_MS, cost_text, needs_consent

ADDRESS = AmqpAddress.parse("amqp://127.0.0.1:5672")
COST: dict[str, Any] = {
    "broker": "b1",
    "successor": "b2",
    "in_sync": ["b1", "b2"],
    "min_insync": 2,
    "holds_clients": True,
    "journal_bytes": 200_000_000,
    "reads_ms": 4_768,
}


class Asked:
    """The primary, as the command asks it; ``error`` instead of an answer."""

    def __init__(self, cost: dict[str, Any], error: str = "") -> None:
        self.cost = cost
        self.error = error
        self.arguments: list[dict[str, Any]] = []

    def __call__(self, address: AmqpAddress, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.arguments.append(arguments)
        if self.error:
            raise operator_cli.CommandNotDoneError(self.error)
        return self.cost


def test_the_words() -> None:
    reads = "b1 hands over to b2, and reads its journal again: 200.0 MB, about 4.8 s"
    assert cost_text(COST) == f"{reads}. The in-sync set {{b1, b2}} is at min_insync 2: clients wait as long"
    assert cost_text({**COST, "holds_clients": False}) == reads


@pytest.mark.parametrize(
    ("holds", "reads_ms", "asks"),
    [(True, ASK_FROM_MS, True), (True, ASK_FROM_MS - 1, False), (False, 60_000, False)],
)
def test_it_asks_if_clients_wait_for_long(holds: bool, reads_ms: int, asks: bool) -> None:
    assert needs_consent({**COST, "holds_clients": holds, "reads_ms": reads_ms}) is asks


class Stdin(io.StringIO):
    def __init__(self, typed: str = "") -> None:
        super().__init__(typed)
        self.typed = typed

    def isatty(self) -> bool:
        return bool(self.typed)


def agree(monkeypatch: pytest.MonkeyPatch, asked: Asked, *, yes: bool = False, typed: str = "") -> None:
    """``typed``: by a person at a terminal; "" for none."""
    monkeypatch.setattr(operator_cli, "_ask", asked)
    monkeypatch.setattr("sys.stdin", Stdin(typed))
    operator_cli._agree(ADDRESS, {"to": "b2"}, yes=yes)


def test_without_a_terminal_it_wants_yes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(operator_cli.CommandNotDoneError, match="With --yes it is done"):
        agree(monkeypatch, asked := Asked(COST))
    assert asked.arguments == [{"to": "b2", "ask": True}]
    assert capsys.readouterr().err == f"understudy: {cost_text(COST)}\n"
    agree(monkeypatch, Asked(COST), yes=True)
    assert capsys.readouterr().err == f"understudy: {cost_text(COST)}\n"


def test_a_person_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    agree(monkeypatch, Asked(COST), typed="y\n")
    with pytest.raises(typer.Abort):
        agree(monkeypatch, Asked(COST), typed="n\n")
    assert capsys.readouterr().err.count("Hand over?") == 2


def test_an_older_primary_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    agree(monkeypatch, Asked({}, "'ask' is nothing that this command takes; 'to' is"))
    with pytest.raises(operator_cli.CommandNotDoneError, match="does not reach the coordination store"):
        agree(monkeypatch, Asked({}, "b1 does not reach the coordination store"))


def test_the_speed_is_that_of_the_newest_recovery_that_read_enough() -> None:
    time = ReadingTime()
    assert time.cost(USUAL_BYTES_PER_S).reads_ms == 1_000
    time.measured(LEAST_MEASURED_BYTES - 1, 10.0)
    assert time.cost(USUAL_BYTES_PER_S).reads_ms == 1_000
    time.measured(100_000_000, 4.0)
    assert time.cost(50_000_000).reads_ms == 2_000
