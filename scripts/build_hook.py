"""Build hook of hatchling: which rooms a wheel has, and the refusal of a tree that lacks one.

A wheel takes each room from the top of the tree to its place below ``understudy``. A room that is missing would be missing in
what is installed, and nobody would be told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOMS: Final = ("broker", "client", "ha", "observers", "pipeline", "replicator", "testing", "xa")
_FRONT_DOOR: Final = "__init__.py"


class RoomsError(Exception):
    """The tree lacks a room, or the link to one."""


class RoomsHook(BuildHookInterface[Any]):
    """Puts the rooms into a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Look at the tree; add the rooms.

        Args:
            version: "standard", or "editable".
            build_data: ``force_include`` gets a line for each room.

        Raises:
            RoomsError: something is missing; the text names it, and says what to do.
        """
        root = Path(self.root)
        check_rooms(root)
        if self.target_name != "wheel":
            return
        if version == "editable":
            check_links(root)
        else:
            build_data["force_include"] |= {str(root / room): f"understudy/{room}" for room in ROOMS}


def check_rooms(root: Path) -> None:
    """Refuse a tree without one of the rooms.

    Raises:
        RoomsError
    """
    missing = [room for room in ROOMS if not (root / room / _FRONT_DOOR).is_file()]
    if missing:
        raise RoomsError(
            f"{root} lacks {', '.join(f'{room}/{_FRONT_DOOR}' for room in missing)}: what is installed from it would lack "
            "these rooms too. Take a whole copy of the source."
        )


def check_links(root: Path) -> None:
    """Refuse an editable installation of a tree whose links are no links, as a ZIP archive or git on Windows leaves them.

    Raises:
        RoomsError
    """
    missing = [room for room in ROOMS if not (root / "understudy" / room / _FRONT_DOOR).is_file()]
    if missing:
        raise RoomsError(
            f"{', '.join(f'understudy/{room}' for room in missing)} in {root}: no symbolic link to the room of that name. An "
            "editable installation needs these links; `pip install .`, without -e, does not. Git makes them with "
            "`git config core.symlinks true` and `git checkout -- understudy`."
        )
