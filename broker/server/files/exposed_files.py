"""Files of a broker that others on this machine may reach are named at its start, with the command that mends it.

Nothing is changed: files of older versions keep their permissions until the operator runs that command. The bits of the group are
the operator's business: no file gets them from this program, so where they are somebody wanted them (docs/configuration.md, Files).
"""

from __future__ import annotations

import shlex
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from understudy.broker.config import Config
from understudy.broker.config.schema import GUEST_PASSWORD_HASH
from understudy.broker.server.files.private_files import DIRECTORY_MODE, FILE_MODE

STORE_SUFFIXES: Final = ("", "-wal", "-shm")
"""A SQLite file and what lies beside it while it is open."""

_log: Final = structlog.get_logger()


class Exposed(NamedTuple):
    """Something that every user of this machine may reach."""

    path: Path
    mode: int
    mend: str


def warn_of_exposed(path: Path, config: Config, elsewhere: Collection[str]) -> None:
    """Log a warning for each secret, store and data directory of this broker that others may reach."""
    for exposed in exposed_of(path, config, elsewhere):
        _log.warning(
            "others on this machine may reach it", path=str(exposed.path), mode=f"{exposed.mode:04o}", mend=exposed.mend
        )


def exposed_of(path: Path, config: Config, elsewhere: Collection[str] = ()) -> Iterator[Exposed]:
    """Exposed files of the broker whose configuration stands at ``path``, but for the keys that stand ``elsewhere``."""
    wanted = [path] if holds_secrets(config, elsewhere) else []
    sections = (config.amqp.tls, config.http.tls, config.link.tls)
    wanted += [section.key for section in sections if section is not None]
    coordination = config.coordination
    if coordination.password_file is not None:
        wanted.append(coordination.password_file)
    if coordination.tls is not None and coordination.tls.key is not None:
        wanted.append(coordination.tls.key)
    kafka = config.kafka
    if kafka.password_file is not None:
        wanted.append(kafka.password_file)
    if kafka.tls is not None and kafka.tls.key is not None:
        wanted.append(kafka.tls.key)
    if (store := coordination.path) is not None:
        wanted += [store.with_name(store.name + suffix) for suffix in STORE_SUFFIXES]
    for each in wanted:
        if (mode := _mode_for_others(each)) is not None:
            yield Exposed(each, mode, f"chmod {FILE_MODE:o} {shlex.quote(str(each))}")
    if (mode := _mode_for_others(config.broker.data)) is not None:
        yield Exposed(config.broker.data, mode, f"chmod {DIRECTORY_MODE:o} {shlex.quote(str(config.broker.data))}")


def holds_secrets(config: Config, elsewhere: Collection[str] = ()) -> bool:
    """True if its file has a secret of links, a password of the store, or a hash of a password that is not public."""
    if config.link.secret and "link.secret" not in elsewhere:
        return True
    if config.coordination.password and "coordination.password" not in elsewhere:
        return True
    return "users" not in elsewhere and any(
        user.password_hash not in (None, GUEST_PASSWORD_HASH) for user in config.users
    )


def _mode_for_others(path: Path) -> int | None:
    """Its permissions, if others have any and may come to it through all directories above; else None, as for what is not there."""
    try:
        path = path.resolve()
        mode = stat.S_IMODE(path.stat().st_mode)
        reached = mode & stat.S_IRWXO and all(above.stat().st_mode & stat.S_IXOTH for above in path.parents)
    except OSError:
        return None
    return mode if reached else None
