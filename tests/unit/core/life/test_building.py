"""A broker: of owners that it is handed, so that it stays small."""

from __future__ import annotations

import ast
import inspect
import textwrap

from tests.unit.core.core_kit import Core
from understudy.broker.core.broker import Broker

MOST_FIELDS = 30


def test_a_broker_has_few_fields() -> None:
    """A field more is a state that may have an owner of its own, or belong to one that is there."""
    fields = vars(Core().broker)
    assert len(fields) <= MOST_FIELDS, sorted(fields)


def test_a_broker_builds_nothing() -> None:
    """`building` makes what a broker is made of."""
    made = ast.parse(textwrap.dedent(inspect.getsource(Broker.__init__)))
    assert [ast.unparse(node) for node in ast.walk(made) if isinstance(node, ast.Call)] == []
