"""Each note that a broker or the ha plugin writes to a journal is known to all that read journals."""

from __future__ import annotations

from understudy.broker.log.handed_out_note import HandedOutNote
from understudy.broker.log.journal_gate import HANDED_OUT, OWN_KINDS
from understudy.ha.plugin import HaPlugin
from understudy.observers.feed.translation import FeedTranslation
from understudy.observers.outlet.reading.log import OutletLog
from understudy.observers.outlet.reading.notes import OutletNotes
from understudy.observers.outlet.reading.reader import NOTHING

KINDS = OWN_KINDS | HaPlugin.journal_notes.kinds.keys()


def test_the_feed_knows_all_of_them() -> None:
    assert FeedTranslation()._note_takers.keys() >= KINDS


def test_the_outlet_knows_all_of_them_and_passes_over_what_was_handed_out() -> None:
    notes = OutletNotes(OutletLog(NOTHING, None, accept_gaps=False))
    assert notes._takers.keys() >= KINDS
    notes.take(HANDED_OUT, HandedOutNote(1, 2, {3: 4}).encode())
