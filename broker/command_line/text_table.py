"""Tables for people: columns as wide as their widest cell, two spaces apart."""

from __future__ import annotations

from understudy.broker.printable import escaped


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a table; each row has as many cells as ``head``. Names in it may be clients'."""
    printed = [[escaped(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*printed, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in printed]
