"""DiskClaim: what a broker says of its own disk, kept where the disk cannot lose it."""

from __future__ import annotations

import attrs


@attrs.frozen
class DiskClaim:
    """The certain content of a disk: a later life of the broker that finds less there has lost records.

    It is compared under the same epoch and the same ``log_start`` only: a broker makes a higher epoch durable before it cuts its
    log, and a log that begins anew has another ``log_start``.

    Attributes:
        epoch: the highest epoch that the broker had seen, durably.
        log_start: its log held everything after this offset.
        durable: its last durable offset.
    """

    epoch: int
    log_start: int
    durable: int

    def lost_by(self, epoch_seen: int, log_start: int, end: int) -> bool:
        """True if a disk that holds this has lost something of what was claimed."""
        if epoch_seen != self.epoch:
            return epoch_seen < self.epoch
        if log_start != self.log_start:
            return log_start < self.log_start
        return end < self.durable
