"""Fault: what a dead letter says of the exception that made it one."""

from __future__ import annotations

import hashlib
from pathlib import PurePath
from types import TracebackType
from typing import Self

import attrs

LONGEST_TEXT = 500


@attrs.frozen(kw_only=True)
class Fault:
    """An exception in words.

    Attributes:
        kind: the exception's type, with its module.
        text: its message, at most 500 characters.
        stack: 16 hexadecimal digits, equal for equal stacks. Files and functions count, lines do not: the hash is the same
            after an edit elsewhere in the file.
        refused: no further attempt may help.
    """

    kind: str
    text: str
    stack: str
    refused: bool = False

    @classmethod
    def of(cls, error: BaseException, *, refused: bool = False) -> Self:
        """An exception that was raised."""
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return cls(kind=name, text=str(error)[:LONGEST_TEXT], stack=_hash(error.__traceback__), refused=refused)


def _hash(traceback: TracebackType | None) -> str:
    digest = hashlib.blake2b(digest_size=8)
    while traceback is not None:
        code = traceback.tb_frame.f_code
        digest.update(f"{PurePath(code.co_filename).name}:{code.co_qualname}\n".encode())
        traceback = traceback.tb_next
    return digest.hexdigest()
