"""Notes of a member of a group: their kinds and octets, which are on disks, and what other rooms learn of them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.broker.log import frame
from understudy.broker.log.journal_gate import OWN_KINDS, NoteFormatError, UnknownNoteError
from understudy.broker.plugin_api import journal_notes
from understudy.broker.plugin_api.plugin import ENTRY_POINT_GROUP, PluginError
from understudy.ha.plugin import HaPlugin
from understudy.replicator import group_notes
from understudy.replicator.group_notes import EpochSeen, No

SEEN = EpochSeen(7, 0xAB).encode()


@pytest.fixture(autouse=True)
def _look_anew() -> Iterator[None]:
    journal_notes.installed_notes.cache_clear()
    yield
    journal_notes.installed_notes.cache_clear()


def test_kinds_and_octets_are_those_on_disks() -> None:
    assert dict(group_notes.NAMES) == {16: "EPOCH_SEEN", 17: "NO", 18: "NO_ENDED", 20: "FOUNDING", 128: "PIECE"}
    assert {19, 21, 22, 23, 24} == OWN_KINDS
    assert bytes.fromhex("00000007 00000000000000ab") == SEEN
    assert EpochSeen.decode(SEEN) == (7, 0xAB)
    no = No(1 << 32 | 5, 9, "lacks é")
    assert no.encode() == bytes.fromhex("0000000100000005 0000000000000009") + "lacks é".encode()
    assert No.decode(no.encode()) == no
    assert No.decode(No(5, 9).encode()) == (5, 9, "")
    assert group_notes.decode_founding(group_notes.encode_founding(0xCD)) == 0xCD
    for decode in (EpochSeen.decode, group_notes.decode_founding):
        with pytest.raises(NoteFormatError, match="note of the ha plugin"):
            decode(SEEN[:4])


def test_a_plugins_kinds_are_none_of_the_journal_or_of_the_broker() -> None:
    kinds = HaPlugin.journal_notes.kinds
    assert not kinds.keys() & OWN_KINDS
    assert all(frame.FIRST_OWNER_KIND <= kind <= frame.LAST_KIND for kind in kinds)
    assert min(kind for kind, name in kinds.items() if name == "PIECE") >= frame.FIRST_BOUND_KIND


def test_a_repair_learns_the_epoch_from_the_plugin_that_wrote_the_note() -> None:
    assert journal_notes.epoch_of(group_notes.EPOCH_SEEN, SEEN) == 7
    assert journal_notes.epoch_of(group_notes.FOUNDING, group_notes.encode_founding(9)) == 0
    assert journal_notes.epoch_of(frame.LAST_KIND, b"") == 0
    assert "promote --unclean" in journal_notes.after_repair()["ha"]


def test_a_start_without_the_plugin_names_the_one_that_wrote_the_note() -> None:
    for kind, named in ((group_notes.NO, r"wrote them \(ha\)"), (77, "wrote them$")):
        with pytest.raises(UnknownNoteError, match=named):
            BrokerNode("b1", Limits(), bytes).recovery.on_note(kind, b"")


def test_a_plugin_that_cannot_be_loaded_is_named_only_where_its_notes_may_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ha = EntryPoint("ha", "understudy.ha.plugin:HaPlugin", ENTRY_POINT_GROUP)
    other = EntryPoint("other", "nowhere.at_all:Plugin", ENTRY_POINT_GROUP)

    def installed(**_: Any) -> list[EntryPoint]:
        return [other, ha]

    monkeypatch.setattr(journal_notes, "entry_points", installed)
    assert journal_notes.epoch_of(group_notes.EPOCH_SEEN, SEEN) == 7
    with pytest.raises(PluginError, match="kind 77, and plugin 'other' cannot be loaded: ModuleNotFoundError"):
        journal_notes.epoch_of(77, b"")
