"""Tables for people: columns as wide as their widest cell, two spaces apart."""

from __future__ import annotations


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a table; each row has as many cells as ``head``."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]
