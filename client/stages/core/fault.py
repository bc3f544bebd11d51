"""Fault: what a dead letter says of the exception that made it one."""

from __future__ import annotations

import hashlib
from pathlib import PurePath
from types import TracebackType
from typing import Final, Self

import attrs

LONGEST_TEXT: Final = 500
LONGEST_KIND: Final = 200
CALLER: Final = "client/stages/slots/slot.py"
"""The end of the path of the file that calls a stage's function."""


@attrs.frozen(kw_only=True)
class Fault:
    """An exception in words.

    Attributes:
        kind: the exception's type, with its module.
        text: its message. Of one with more than 500 characters the first 500, and how many it had.
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
        return cls(kind=name[:LONGEST_KIND], text=_text(error), stack=_hash(error.__traceback__), refused=refused)


def _text(error: BaseException) -> str:
    """The message, without what a header cannot carry."""
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001  # a __str__ of the application
        text = f"(its text cannot be had: {type(failure).__name__})"
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]} (cut: {len(text):,} characters)"


def _hash(traceback: TracebackType | None) -> str:
    """Of the frames behind the library's call of the stage; of all frames if there is no such call."""
    digest = hashlib.blake2b(digest_size=8)
    while traceback is not None:
        code = traceback.tb_frame.f_code
        traceback = traceback.tb_next
        if code.co_filename.endswith(CALLER):
            digest = hashlib.blake2b(digest_size=8)  # else another version of the library gives another hash
            continue
        digest.update(f"{PurePath(code.co_filename).name}:{code.co_qualname}\n".encode("utf-8", "replace"))
    return digest.hexdigest()
