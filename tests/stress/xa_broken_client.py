"""A client of ``scripts/stress xa`` with a known bug: the negative control of its verdicts."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from understudy.xa import session
from understudy.xa.core.manager.recovery import recover
from understudy.xa.core.register.entry import Entry
from understudy.xa.stress.client import work


def presumes_rollback(pipe: Connection, profiles: Path, job: str, seed: str, log: Path) -> None:
    """Be a client whose recovery rolls back what is decided."""

    def recover_wrongly(entry: Entry, **options: Any) -> Any:
        entry.commit = False
        return recover(entry, **options)

    setattr(session, recover.__name__, recover_wrongly)
    work(pipe, profiles, job, seed, log)
