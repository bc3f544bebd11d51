"""RunFolder: the folder of one run of a command, made before it, and removed after it unless it is worth keeping.

Demos and stress tests of ``client``, ``xa`` and ``testing`` share this file.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

INTERRUPTED: Final = 130


class RunFolder:
    """Makes the folder: the one that ``--keep-logs`` names, which must be new, or a temporary one.

    Args:
        command: in the words of a shell, such as ``understudy stages demo``.
        keep_logs: where everything is kept; None: nowhere, unless the run fails.
        for_others: other users may enter it. PostgreSQL may run as one, and must come to its own folder in there.

    Raises:
        typer.Exit: the folder is there already, or cannot be made; the code is 2.
    """

    def __init__(self, command: str, keep_logs: Path | None, *, for_others: bool = False) -> None:
        if keep_logs is not None and keep_logs.exists():
            typer.echo(f"{command}: --keep-logs {keep_logs} is there already", err=True)
            raise typer.Exit(2)
        self._temporary = keep_logs is None
        self.path = (keep_logs or Path(tempfile.mkdtemp(prefix=f"{command.replace(' ', '-')}-"))).resolve()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if for_others:
                self.path.chmod(0o711)
        except OSError as error:
            typer.echo(f"{command}: --keep-logs {self.path}: {error.strerror}", err=True)
            raise typer.Exit(2) from error

    def interrupted(self) -> typer.Exit:
        """Remove a temporary folder. Returns the end of an interrupted command."""
        self._remove_temporary()
        return typer.Exit(INTERRUPTED)

    def finish(self, report: dict[str, Any], lines: Iterable[str], *, as_json: bool) -> NoReturn:
        """Show a report, and end the command.

        Args:
            report: is ``ok`` or not.
            lines: the report as text.
            as_json: stdout gets the report on one line, and the text goes to stderr.

        Raises:
            typer.Exit: always; the code is 0 for a report that is ``ok``, else 1.
        """
        for line in lines:
            typer.echo(line, err=as_json)
        if report["ok"] and self._temporary:
            self._remove_temporary()
        else:
            typer.echo(f"Logs and data are in {self.path}", err=True)
        if as_json:
            typer.echo(json.dumps(report))
        raise typer.Exit(0 if report["ok"] else 1)

    def _remove_temporary(self) -> None:
        if self._temporary:
            shutil.rmtree(self.path)
