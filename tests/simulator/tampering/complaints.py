"""Complaints: each place at which a checker, or a client of a workload, says that a promise is broken. Found in the source.

The checker ``accounts`` says what the verdicts say that it asks: their sources are searched in its place.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs

from understudy.client.verdicts import LOG_VERDICTS

ACCOUNTS = "checkers/accounts"
SIMULATION = Path(__file__).resolve().parents[1]


@attrs.frozen(kw_only=True)
class Complaint:
    """A statement that raises :class:`Violation`, or makes one for the statement that does.

    Attributes:
        module: its file from ``tests/simulation`` on, without the suffix.
        text: what it says, with ``{}`` for each value.
        first_line, last_line: of the statement that raises.
    """

    module: str
    promise: str
    text: str
    first_line: int
    last_line: int

    def says(self, text: str) -> bool:
        """True if a violation's text is made from this one's."""
        return re.fullmatch(".*".join(map(re.escape, self.text.split("{}"))), text, re.DOTALL) is not None

    def __str__(self) -> str:
        return f"{self.module}:{self.first_line} {self.promise}: {self.text}"


@cache
def complaints_of(module: str) -> tuple[Complaint, ...]:
    """All that the file ``module`` has."""
    tree = ast.parse((SIMULATION / f"{module}.py").read_text(encoding="utf-8"))
    found = []
    for function, call in _violations(tree):
        if module == ACCOUNTS:
            said = list(_of_verdicts())
        else:
            promise, text = call.args
            said = [(_constant(promise), _words(text, function))]
        first, last = call.lineno, call.end_lineno or call.lineno
        found += [Complaint(module=module, promise=p, text=t, first_line=first, last_line=last) for p, t in said]
    return tuple(found)


def _of_verdicts() -> Iterator[tuple[str, str]]:
    """Promise and text of each violation that a verdict of :data:`LOG_VERDICTS` makes."""
    for verdict in LOG_VERDICTS:
        for function, call in _violations(ast.parse(textwrap.dedent(inspect.getsource(verdict)))):
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            yield _constant(keywords["promise"]), _words(keywords["text"], function)


def _violations(tree: ast.AST) -> Iterator[tuple[ast.FunctionDef, ast.Call]]:
    """Each call of ``Violation``, and the function in which it stands."""
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Violation":
                yield function, node


def _constant(node: ast.expr) -> str:
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, str)
    return node.value


def _words(text: ast.expr, function: ast.FunctionDef) -> str:
    """The certain part of a text; of a text that has a name, of what was assigned to that name last."""
    if isinstance(text, ast.Name):
        named = [
            node
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            and node.lineno < text.lineno
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == text.id
            and isinstance(node.value, ast.JoinedStr)
        ]
        return _words(max(named, key=lambda node: node.lineno).value, function) if named else "{}"
    if isinstance(text, ast.Constant):
        return str(text.value)
    if isinstance(text, ast.JoinedStr):
        return "".join(_words(part, function) for part in text.values)
    return _words(text.value, function) if isinstance(text, ast.FormattedValue) else "{}"
