"""How a broker learns that a log lacks records which the group has acknowledged (decision 0028).

A crash loses what was not synced: nothing of that was ever answered. A disk that lies, or a file that somebody removed, loses what
was: a broker with such a log must not lead as long as another listed broker may hold what is missing. The two are told apart by
what others know and by what this broker has said of its own disk; the end of a journal alone does not tell.
"""

from __future__ import annotations

import attrs

from understudy.replicator import wire
from understudy.replicator.receiving.disk_claim import DiskClaim


@attrs.frozen(kw_only=True)
class Lack:
    """Records that a log lacks and ``holder`` holds as stable.

    Attributes:
        first, last: their offsets.
    """

    holder: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"its log lacks the records {self.first:,} to {self.last:,}, which {self.holder} holds as stable"


def proof_of(holder: str, sync: wire.Sync, common: int, forced: int) -> Lack | None:
    """Stable records that a linked backup knows of and the primary's log lacks; None if there are none.

    Args:
        holder: the backup.
        sync: what it holds.
        common: the last offset that both logs share.
        forced: the newest epoch that an operator has forced. It ends the claims of a log that does not hold it: what was stable
            before that and is not in the forced base is lost by that decision.
    """
    if common < sync.stable and sync.newest >= forced:
        return Lack(holder=holder, first=common + 1, last=sync.stable)
    return None


def own_loss(
    part: bool, claim: DiskClaim | None, epoch_seen: int, log_start: int, end: int, *, repaired: bool = False
) -> str:
    """The sign that this broker's own journal has lost records; "" for none.

    Args:
        part: it ends in the midst of a catch-up. This broker is listed, and who was listed held all of it.
        repaired: a repair has cut it, and no catch-up has ended since.
        claim: what a former life has published in the store.
        epoch_seen: the highest epoch that the recovered journal has seen.
        log_start: its log holds everything after this offset.
        end: its last offset.
    """
    if claim is not None and claim.lost_by(epoch_seen, log_start, end):
        if claim.epoch == epoch_seen and claim.durable > end:
            return f"its log lacks the records {end + 1:,} to {claim.durable:,}, which were on its disk before"
        return f"its log ends at {end:,} in epoch {epoch_seen}; its disk has held {claim.durable:,} records in epoch {claim.epoch}"
    if repaired:
        return f"its log lacks what stood behind {end:,}: its journal was damaged there, and a repair has cut it"
    return f"its log may lack what stood behind {end:,}: its journal ends in the midst of a catch-up" if part else ""
