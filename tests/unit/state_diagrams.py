"""The state diagrams of the docs, drawn from the tables of the code.

python -m tests.unit.state_diagrams        # draws all of them anew
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import attrs

from understudy.broker.state_table import StateTable
from understudy.broker.transactions import tx_buffer
from understudy.ha.leading import remote_backup

ROOT: Final = Path(__file__).parents[2]
BLOCK: Final = "<!-- states: {} -->\n```mermaid\n{}\n```\n"


@attrs.frozen
class Diagram:
    """One diagram.

    Attributes:
        doc: its file.
        name: of the table, in the comment above the diagram.
        table: that it shows.
        first: states in which an owner begins, with why.
    """

    doc: str
    name: str
    table: StateTable[Any, Any]
    first: dict[Any, str]

    @property
    def path(self) -> Path:
        return ROOT / self.doc

    def drawn(self) -> str:
        return BLOCK.format(self.name, self.table.mermaid(self.first))

    def shown(self) -> str:
        """As it stands in the doc, "" if it does not."""
        found = re.search(self._pattern, self.path.read_text(encoding="utf-8"), re.DOTALL)
        return found[0] if found is not None else ""

    def draw(self) -> None:
        text, count = re.subn(
            self._pattern, lambda _: self.drawn(), self.path.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        assert count == 1, f"{self.doc} has {count} places for the states of {self.name}"
        self.path.write_text(text, encoding="utf-8")

    @property
    def _pattern(self) -> str:
        begin, end = BLOCK.split("{}\n```\n")
        return re.escape(begin.format(self.name)) + ".*?" + re.escape("```\n" + end)


DIAGRAMS: Final = [
    Diagram("docs/replication.md", "TxBuffer", tx_buffer.LIFE, tx_buffer.BEGINS),
    Diagram("docs/replication.md", "RemoteBackup", remote_backup.JOINING, remote_backup.BEGINS),
]


if __name__ == "__main__":
    for each in DIAGRAMS:
        each.draw()
