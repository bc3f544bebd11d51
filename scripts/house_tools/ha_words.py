"""Words of the HA plugin in ``broker/``, which is to know nothing of it.

What is left is what users see: keys and roles in ``/status``, texts of commands, sections of the configuration, metrics, arguments
of queues and consumers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from scripts.house_tools.sources import Source

WORDS: Final = (
    r"primar(?:y|ies)",
    r"backups?",
    r"joiners?",
    r"failovers?",
    r"in[-_ ]?sync(?:[-_ ]set)?",
    r"min_insync",
    r"refill(?:s|ed|ing)?",
    r"catch(?:es|ing)?[-_ ]?up",
    r"caught[-_ ]up",
    r"zookeeper",
    r"ha",
)
"""The words of the plugin for the parts of a group of brokers. The broker itself leads or not, and has a stable log."""

_BEGIN: Final = r"(?<![a-z])"
_END: Final = r"(?![a-z])"
_WORD: Final = re.compile(f"{_BEGIN}(?:{'|'.join(WORDS)}){_END}", re.IGNORECASE)
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def has_word(line: str) -> bool:
    """True if ``line`` has one of `WORDS`, also within a name: ``_``, digits and capitals begin a new word."""
    return _WORD.search(_CAPITAL.sub("_", line)) is not None


def lines_with_words(source: Source) -> tuple[int, int]:
    """How many lines of a file have such a word: in comments and docstrings, and in code (names and strings)."""
    docs = set(_docstring_lines(source.tree))
    remarks = code = 0
    for number, line in enumerate(source.text.splitlines(), 1):
        if has_word(line):
            if number in docs or not has_word(line.split("#", maxsplit=1)[0]):
                remarks += 1
            else:
                code += 1
    return remarks, code


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    """The lines of strings that stand alone: docstrings, and remarks below a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
