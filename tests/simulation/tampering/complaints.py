"""Complaints: each place at which a checker, or a client of a workload, says that a promise is broken. Found in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs

SIMULATION = Path(__file__).resolve().parents[1]


@attrs.frozen(kw_only=True)
class Complaint:
    """A statement that raises :class:`Violation`.

    Attributes:
        module: its file from ``tests/simulation`` on, without the suffix.
        text: what it says, with ``{}`` for each value.
        first_line, last_line: of the statement.
    """

    module: str
    promise: str
    text: str
    first_line: int
    last_line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.first_line} {self.promise}: {self.text}"


@cache
def complaints_of(module: str) -> tuple[Complaint, ...]:
    """All that the file ``module`` has."""
    return tuple(_complaints(module))


def _complaints(module: str) -> Iterator[Complaint]:
    tree = ast.parse((SIMULATION / f"{module}.py").read_text(encoding="utf-8"))
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        for node in ast.walk(function):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Violation"):
                continue
            promise, text = node.args
            assert isinstance(promise, ast.Constant)
            assert isinstance(promise.value, str)
            yield Complaint(
                module=module,
                promise=promise.value,
                text=_words(text, function),
                first_line=node.lineno,
                last_line=node.end_lineno or node.lineno,
            )


def _words(text: ast.expr, function: ast.FunctionDef) -> str:
    """What is certain of a text; of one that has a name, what was given that name last."""
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
