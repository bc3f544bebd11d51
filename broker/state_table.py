"""StateTable: the states of one object and the moves between them, as data.

The class that owns a state has one table and writes the state in one place. So the table is what happens, and the diagram in
`docs/` that is drawn from it is true (`tests/unit/test_state_diagrams.py`). A move that the table does not have is our own
mistake, never a peer's: whoever takes a message of a peer asks for the state first.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalMoveError(AssertionError):
    """An event has come in a state that has no move for it; the state is unchanged."""


class StateTable(Generic[S, E]):
    """A table of moves.

    Attributes:
        moves: (state, event) to the next state.
    """

    __slots__ = ("moves",)

    def __init__(self, moves: Mapping[tuple[S, E], S]) -> None:
        self.moves = dict(moves)

    def after(self, state: S, event: E, owner: object) -> S:
        """The state after ``event``.

        Args:
            state: of ``owner`` now.
            event: what has happened to it.
            owner: named by the error.

        Raises:
            IllegalMoveError: ``state`` has no move for ``event``.
        """
        found = self.moves.get((state, event))
        if found is None:
            raise IllegalMoveError(f"{owner} is {state.value}: {event.value!r} is no move of it")
        return found

    def mermaid(self, first: Mapping[S, str]) -> str:
        """The table as a Mermaid state diagram.

        Args:
            first: the states in which an owner begins, with why.
        """
        lines = ["stateDiagram-v2"]
        lines += [f"    [*] --> {_name(state)}: {why}" for state, why in first.items()]
        arrows: dict[tuple[S, S], list[str]] = {}
        for (state, event), then in self.moves.items():
            arrows.setdefault((state, then), []).append(event.value)
        lines += [
            f"    {_name(state)} --> {_name(then)}: {', '.join(events)}" for (state, then), events in arrows.items()
        ]
        return "\n".join(lines)


def _name(state: Enum) -> str:
    return state.name.lower()
