"""A state diagram of the docs shows its table: each state can be reached, and each state of the enum has its place."""

from __future__ import annotations

from enum import Enum

import pytest

from tests.unit.state_diagrams import DIAGRAMS, Diagram
from understudy.broker.state_table import IllegalMoveError, StateTable


class Light(Enum):
    RED = "red light"
    GREEN = "green light"


class Turn(Enum):
    GO = "turns green"
    STOP = "turns red"


CROSSING = StateTable({(Light.RED, Turn.GO): Light.GREEN, (Light.GREEN, Turn.STOP): Light.RED})


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.name)
def test_the_docs_show_the_table(diagram: Diagram) -> None:
    assert diagram.shown() == diagram.drawn(), "draw it anew: python -m tests.unit.state_diagrams"


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.name)
def test_each_state_is_reached_and_each_event_is_used(diagram: Diagram) -> None:
    moves = diagram.table.moves
    reached: set[Enum] = set(diagram.first)
    before: set[Enum] = set()
    while reached != before:
        before = set(reached)
        reached |= {then for (state, _), then in moves.items() if state in before}
    states, events = {type(state) for state in reached}, {type(event) for _, event in moves}
    assert reached == {state for kind in states for state in kind}
    assert {event for _, event in moves} == {event for kind in events for event in kind}


def test_a_move_that_the_table_lacks_is_an_error_that_names_owner_state_and_event() -> None:
    assert CROSSING.after(Light.RED, Turn.GO, "crossing 7") is Light.GREEN
    with pytest.raises(IllegalMoveError, match="crossing 7 is green light: 'turns green' is no move of it"):
        CROSSING.after(Light.GREEN, Turn.GO, "crossing 7")


def test_a_table_is_drawn_with_one_arrow_for_the_events_between_two_states() -> None:
    assert CROSSING.mermaid({Light.RED: "at night"}).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> red: at night",
        "    red --> green: turns green",
        "    green --> red: turns red",
    ]
