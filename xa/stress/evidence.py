"""The answers that clients got, held against the books of both resource managers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from understudy.xa.core.errors import XaError
from understudy.xa.demo.books import Books, opened, read_books
from understudy.xa.manager import TransactionManager
from understudy.xa.stress.client import Told, Verdict

POLL_S: Final = 0.01


class ViolationError(XaError):
    """The resource managers do not agree, a client was told what is not so, or a transaction stays in doubt."""


def settled_books(manager: TransactionManager, deadline: float) -> Books:
    """The books when nothing is in doubt any more; nothing is completed here.

    Args:
        manager: of the profile.
        deadline: of `time.monotonic`.

    Raises:
        ViolationError: something is still in doubt at the deadline, or nothing is and the books do not agree.
    """
    while True:
        found = read_books(manager)
        if not found.in_doubt and not found.waiting:
            break
        if time.monotonic() > deadline:
            raise ViolationError("; ".join(found.problems))
        time.sleep(POLL_S)
    if found.wrong:
        raise ViolationError("; ".join(found.wrong))
    return found


def check_told(manager: TransactionManager, told: Iterable[Told]) -> None:
    """Hold what clients were told against the ledger.

    Raises:
        ViolationError: a transfer that was told as committed is not there, or the other way round.
    """
    said = {one.gid: one for one in told}
    bank = opened(manager, "bank")
    try:
        rows = bank.resource.execute("SELECT gid FROM ledger WHERE gid = ANY(%s)", (list(said),)).fetchall()
    finally:
        bank.close()
    there = {gid for (gid,) in rows}
    for gid, one in said.items():
        if one.verdict is Verdict.HEURISTIC:
            raise ViolationError(f"transaction {gid} met a heuristic completion, and no operator is here: {one.text}")
        wanted = {Verdict.COMMITTED: True, Verdict.ABSENT: False}.get(one.verdict)
        if wanted is not None and wanted is not (gid in there):
            raise ViolationError(
                f"transaction {gid} was told as {one.verdict.value} ({one.text}), and the ledger "
                f"{'has' if gid in there else 'does not have'} it"
            )
