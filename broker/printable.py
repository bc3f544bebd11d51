"""Text that somebody else chose, made harmless for a terminal and for a log of lines."""

from __future__ import annotations


def escaped(text: str) -> str:
    """``text``, with each character that does not print (controls, and what turns the direction of writing) as Python writes it."""
    return text if text.isprintable() else "".join([c if c.isprintable() else _escape(c) for c in text])


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
