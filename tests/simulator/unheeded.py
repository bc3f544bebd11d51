"""Checkers whose complaints are not heeded: a run with a known bug goes on to its end, as one of the product would.

Checkers only look, so a run is the same with them and without. With this in force they do not raise into the run. After the
first complaint they are not asked any more: they may have lost the thread, and would say the same at each event. A client that
sees a broken promise itself still ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from tests.simulator.checkers import Checkers
from tests.simulator.checkers.chosen_log import ChosenLog
from tests.simulator.checkers.levels import Levels
from tests.simulator.checkers.order import Order
from tests.simulator.checkers.replicas import Replicas
from tests.simulator.checkers.restart import Restart
from tests.simulator.ledger import Violation

_HOOKS: Final = (
    (Checkers, ("opened", "leaving", "after_event", "shown", "sent", "store_changed", "said")),
    (ChosenLog, ("stable_at", "batch")),
    (Levels, ("holds_the_log_alone",)),
    (Order, ("handed_out", "enqueued")),
    (Replicas, ("decided",)),
    (Restart, ("check",)),
)
"""Where the simulator calls checkers: their own calls of each other are within."""
_ASKED_ON: Final = frozenset({"opened", "said"})
"""What also serves the run itself: clients learn here which outcomes may be forgotten."""


class Complaints:
    """The complaints of the checkers in one run.

    Attributes:
        first: None if no checker has complained.
    """

    def __init__(self) -> None:
        self.first: Violation | None = None

    def unheeded(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """``hook``, which never raises what a checker says."""

        @wraps(hook)
        def call(*args: Any, **options: Any) -> Any:
            if self.first is not None and hook.__name__ not in _ASKED_ON:
                return None
            try:
                return hook(*args, **options)
            except Violation as complaint:
                self.first = self.first or complaint
            except Exception:
                if self.first is None:
                    raise
            return None

        return call


@contextmanager
def unheeded() -> Iterator[Complaints]:
    """Clusters that are made and run within go on whatever their checkers say."""
    complaints = Complaints()
    hooks = [(owner, name, vars(owner)[name]) for owner, names in _HOOKS for name in names]
    try:
        for owner, name, hook in hooks:
            static = isinstance(hook, staticmethod)
            call = complaints.unheeded(hook.__func__ if static else hook)
            setattr(owner, name, staticmethod(call) if static else call)
        yield complaints
    finally:
        for owner, name, hook in hooks:
            setattr(owner, name, hook)
