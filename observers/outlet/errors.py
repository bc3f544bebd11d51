"""Why the outlet stops: what it cannot send whole and in order, it does not send, and says so."""

from __future__ import annotations

from typing import Final

from understudy.broker.errors import UnderstudyError
from understudy.broker.log.position import Position

ACCEPT: Final = "--accept-gap"


class OutletGapError(UnderstudyError):
    """The journal does not hold everything behind the position. To go on without it is an operator's decision."""


class MissingRecordsError(OutletGapError):
    """Records behind the position are not in this journal any more, or never were."""

    def __init__(self, sent: int, first: int) -> None:
        super().__init__(
            f"everything up to offset {sent} of the log has been sent, and this journal begins with offset {first}: the "
            f"{first - sent - 1} records between are missing. Let the outlet read another broker's journal that has them, "
            f"or go on without them: {ACCEPT}"
        )


class IncompleteTransactionError(OutletGapError):
    """A committed transaction of which this journal holds a part only."""

    def __init__(self, tx: str, offset: int, problem: str) -> None:
        super().__init__(
            f"transaction {tx}, whose PREPARE stands at offset {offset}, is not whole in this journal: it {problem}. Let the "
            f"outlet read another broker's journal that has it, or go on without that transaction: {ACCEPT}"
        )


class UnknownQueueError(OutletGapError):
    """A message for a queue whose name this journal does not state."""

    def __init__(self, queue_id: int, offset: int) -> None:
        super().__init__(
            f"the record at offset {offset} is for queue number {queue_id}, whose declaration is not in this journal any more. Let "
            f"the outlet read another broker's journal that has it, or go on without that message: {ACCEPT}"
        )


class RewrittenLogError(OutletGapError):
    """The group's log is another one than that of which a part was sent: its end was lost.

    An operator has promoted a broker that lacked it, or has repaired a damaged journal.

    Attributes:
        fork: the last position that both logs share.
    """

    def __init__(self, sent: Position, epoch: int, fork: Position) -> None:
        super().__init__(
            f"what was sent ends at position {sent}, but in this log epoch {epoch} begins behind {fork}: records from there on "
            f"were sent and are not in the group's log any more, after an unclean promotion or a repair. "
            f"To go on behind {fork}: {ACCEPT}"
        )
        self.fork = fork


class BehindError(OutletGapError):
    """The journal ends before what was sent: it is an old one, or of another log."""

    def __init__(self, sent: Position, end: int) -> None:
        super().__init__(
            f"this journal ends with offset {end}, and everything up to position {sent} has been sent already: it is of a broker "
            f"that is behind, or its data directory was made anew. To begin with this journal: {ACCEPT}"
        )


class OtherFoundingError(OutletGapError):
    """The position is of an earlier group of the same name."""

    def __init__(self, sent: str, found: str) -> None:
        super().__init__(
            f"the position in Kafka is of founding {sent or 'none'} of the group, and this journal of founding {found or 'none'}: "
            f"the group was founded anew. To begin with this journal: {ACCEPT}"
        )


class OutletFencedError(UnderstudyError):
    """Another outlet of the group sends now. This one has sent nothing that the other does not know of."""


class KafkaAwayError(UnderstudyError):
    """Kafka does not answer, or has aborted the transaction: the outlet opens anew and tries again."""


class RecordRefusedError(UnderstudyError):
    """Kafka does not take a record, and never will. Nothing of its transaction is in Kafka.

    Attributes:
        place: of the record (`KafkaRecord.place`); None: one of a batch of several. It is found if the same records are sent again.
    """

    def __init__(self, reason: str, place: tuple[int, int, int] | None) -> None:
        super().__init__(reason)
        self.place = place
