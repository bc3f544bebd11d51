"""JournalNotes: what a plugin says of the notes that it writes to a journal, where no core of it runs.

A recovery hands each note whose kind is none of `journal_gate.OWN_KINDS` to the plugin that extends the core
(`CoreExtension.replay_note`). A repair of a damaged journal has no core and no configuration. It asks the installed plugins, and
loads them when it meets a note that is not the broker's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Protocol

from understudy.broker.plugin_api.plugin import ENTRY_POINT_GROUP, PluginError


class JournalNotes(Protocol):
    """The class of a plugin that writes notes has one as its attribute ``journal_notes``.

    Attributes:
        kinds: the kinds that the plugin writes, with their names: of `frame.FIRST_OWNER_KIND` to `frame.LAST_KIND`, none of
            `journal_gate.OWN_KINDS`.
        after_repair: a text for the operator who has repaired a journal with such notes.
    """

    @property
    def kinds(self) -> Mapping[int, str]: ...

    @property
    def after_repair(self) -> str: ...

    def epoch_of(self, kind: int, payload: bytes) -> int:
        """The highest epoch that a note says to have been seen; 0 if the note is about none.

        Raises:
            NoteFormatError: another program has written the note.
        """


@cache
def installed_notes() -> tuple[dict[str, JournalNotes], dict[str, str]]:
    """The notes of all installed plugins, by the plugin's name; and why plugins cannot be loaded, by name."""
    found: dict[str, JournalNotes] = {}
    failed: dict[str, str] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            notes = getattr(point.load(), "journal_notes", None)
        except Exception as error:  # noqa: BLE001  # whatever the import of a foreign package raises
            failed[point.name] = f"{type(error).__name__}: {error}"
            continue
        if notes is not None:
            found[point.name] = notes
    return found, failed


def epoch_of(kind: int, payload: bytes) -> int:
    """The highest epoch that a plugin's note says to have been seen; 0 if the note is about none, or of no installed plugin.

    Raises:
        PluginError: no plugin that can be loaded writes such notes, and one cannot be loaded.
        NoteFormatError: another program has written the note.
    """
    found, failed = installed_notes()
    for notes in found.values():
        if kind in notes.kinds:
            return notes.epoch_of(kind, payload)
    for name, why in failed.items():
        raise PluginError(f"the journal holds notes of kind {kind}, and plugin {name!r} cannot be loaded: {why}")
    return 0


def writers(kind: int | None = None) -> str:
    """The names of installed plugins that write notes (of ``kind``), in parentheses and after a blank; "" if there are none."""
    names = [name for name, notes in installed_notes()[0].items() if kind is None or kind in notes.kinds]
    return f" ({', '.join(names)})" if names else ""


def after_repair() -> dict[str, str]:
    """Texts of installed plugins for the operator who has repaired a journal with a plugin's notes, by the plugin's name."""
    return {name: notes.after_repair for name, notes in installed_notes()[0].items()}
