"""Tables for people: columns as wide as their widest cell, two spaces apart."""

from __future__ import annotations

from understudy.broker.printable import escaped


def table(head: list[str], rows: list[list[str]], *, most: int | None = None) -> list[str]:
    """The lines of a table; each row has as many cells as ``head``. Names in it may be clients'.

    Args:
        head: titles of the columns.
        rows: cells.
        most: characters of a cell that can widen its column. A longer cell is printed whole, and moves its own line alone.
    """
    printed = [[escaped(cell) for cell in row] for row in (head, *rows)]
    widths = [
        max(len(cell) for cell in column if cell is column[0] or most is None or len(cell) <= most)
        for column in zip(*printed, strict=True)
    ]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in printed]
