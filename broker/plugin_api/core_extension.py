"""CoreExtension: the deciding part of the one plugin that extends the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from understudy.broker.core.broker import Broker
    from understudy.broker.core.state import BrokerState
    from understudy.broker.log.journal_gate import JournalGate


class CoreExtension(Protocol):
    """The deciding part of a plugin, inside one :class:`~understudy.broker.core.life.node.BrokerNode`.

    A node is dropped and made anew when its broker steps down; so is its extension.
    """

    def attach(self, state: BrokerState) -> None:
        """The empty state, before recovery."""

    def replay_note(self, kind: int, payload: bytes, place: int) -> None:
        """Recovery: a note, in the journal's order.

        Args:
            kind: none of `journal_gate.OWN_KINDS`, so the extension wrote the note; or REPAIRED; or `frame.KIND_CUT`, behind which
                the log begins anew.
            payload: of the note.
            place: of the note in the journal, 0 if that is not known (`body_place`).

        Raises:
            UnknownNoteError, NoteFormatError: the extension does not know the note. The start is refused.
        """

    def replay_extras(self, payload: bytes, at: int) -> None:
        """Recovery: what :meth:`extras` gave to a checkpoint."""

    def extras(self) -> bytes:
        """The extension's part of a checkpoint."""

    def opened(self, broker: Broker, gate: JournalGate) -> None:
        """Recovery is over; the broker begins to run. The extension decides whether it leads."""

    def durable(self) -> None:
        """More of the journal is on disk."""

    def disk_low(self, reason: str, room: int) -> None:
        """The disk is nearly full; see ``BrokerNode.disk_low``."""

    def tick(self, now_ms: int) -> None:
        """Time passes."""

    def end_turn(self, flush: bool) -> bool:
        """After the broker has closed its batch; see ``BrokerNode.gather``."""

    def after_turn(self) -> None:
        """Do what can wait: the turn's output and its journal group are on their way."""
