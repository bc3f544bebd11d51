"""LogFormat: which format of log records a primary writes while its group is of several programs.

The rule: **a primary writes no record that a broker cannot read which is in its set or is being brought up.** It begins its epoch
with the oldest format that its program can confine itself to, and goes on to a newer one when every broker it waits for, or sends
the log to, has said on its link that it reads that. A listed broker that has not linked in this epoch has said nothing. From then
on whoever cannot read it is turned away: it has to be upgraded. Within an epoch the format never goes back.

Who holds it to that: ``Log.append``, the one door into a primary's log, takes no kind that came after the format in force;
whatever wants to write such a kind asks ``Log.may_hold`` first. Nothing of it is kept on a disk: who reads a journal, or a batch,
refuses the kinds that it does not know, and the next primary finds out anew what its group reads.

Refused: a format that an operator switches on (one more step to forget, and the links know the answer); a record that states the
format (the brokers that it would be for cannot read it).
"""

from __future__ import annotations

from collections.abc import Iterable

from understudy.broker.log import record
from understudy.broker.log.log import Log
from understudy.ha.leading.remote_backup import RemoteBackup


class LogFormat:
    """One epoch's.

    Args:
        log: the primary's; it is confined at once.
        newest: the newest format that this program writes.

    Attributes:
        written: the format in force.
    """

    def __init__(self, log: Log, newest: int) -> None:
        self._log = log
        self._newest = newest
        self.written = min(newest, record.OLDEST_WRITTEN_VERSION)
        log.confine(self.written)

    def refusal(self, broker: str, peer: str, reads: int, held: int) -> str:
        """Why ``peer``, which reads formats up to ``reads``, cannot be sent the log of ``broker``; "" if it can.

        Nor what ``broker`` still holds of earlier epochs, which takes the format ``held`` (`BrokerState.record_format`).
        """
        if reads >= max(self.written, held):
            return ""
        does = f"writes the log in format {self.written}"
        if held > self.written:
            does = f"holds queues or transactions that take format {held} of the log"
        return (
            f"{broker} {does}, {peer} reads formats up to {reads}: upgrade {peer} (the backups first, the primary last)"
        )

    def raise_for(self, backups: Iterable[RemoteBackup], *others: int) -> bool:
        """Go on to the newest format that all of them read, and that is above none of ``others``.

        Returns:
            Whether it is another one.
        """
        if self.written == self._newest:
            return False
        readable = min([self._newest, *others, *[backup.newest_record_format for backup in backups]])
        if readable <= self.written:
            return False
        self.written = readable
        self._log.confine(readable)
        return True
