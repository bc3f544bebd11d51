"""CoordinationStore: the SQLite file in which the brokers of one host keep their groups, and the only SQL there is.

Synchronous, for one thread, and without clock or process table: times, leases and who is alive are ``local``'s business.

What is written how, and why:

- WAL, so that a reader never waits for a writer, and a writer that was stopped (SIGSTOP) in the middle of a transaction holds
  up writers only. With a rollback journal it would hold up everybody, readers included.
- The group's state is committed with ``synchronous=FULL``: one fsync before the answer. A promotion or an expulsion that the
  power takes back afterwards would break every promise. Measured here: 250 us; a rollback journal needs four fsyncs
  (900 us), and in its default mode, DELETE, FULL is not even enough: unlinking the journal is the commit, and is not synced.
- Brokers and leases are committed with ``synchronous=NORMAL``: no fsync, 15 us, since none of them outlives a reboot. In WAL
  mode that can lose the last of them and damage nothing, and the next FULL commit syncs what stands before it in the WAL.
- Checkpoints are made by :meth:`_checkpoint` alone and in mode TRUNCATE, which keeps writers out. SQLite's own, in mode
  PASSIVE after some commit, run beside writers; before SQLite 3.51.3 that could lose pages ("WAL-reset bug").

Once it is made, the file is never opened by other means than SQLite, not even to look at its first bytes: closing any
descriptor of it drops all locks that this process holds on it (fcntl).
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import attrs

from understudy.broker.server.files.file_storage import make_directory
from understudy.broker.server.files.private_files import FILE_MODE
from understudy.ha.operators.unclean import EPOCHS_DRAWN, forced_group
from understudy.ha.store.coordination import (
    Bar,
    BrokerId,
    BrokerInfo,
    Damage,
    GroupState,
    HistoryEntry,
    StoreChangedError,
    StoreError,
)
from understudy.ha.store.group_changes import MAX_HISTORY, anew_text, change_text
from understudy.replicator.receiving.disk_claim import DiskClaim

SCHEMA_VERSION: Final = 2
APPLICATION_ID: Final = 0x55535459  # "USTY"
CHECKPOINT_COMMITS: Final = 256
"""After so many commits of one process the WAL, of a page or two each, is written back and emptied."""
CHECKPOINT_WAIT_MS: Final = 50
"""For so long a checkpoint waits at most, and writers for it: a reader that was stopped (SIGSTOP, Ctrl-Z) would hold up all of
them for ``busy_ms``. Not 0: without the write lock SQLite goes on in mode PASSIVE, beside the writer that has it."""

_SCHEMA: Final = (
    """CREATE TABLE groups (
        name TEXT PRIMARY KEY,
        epoch INTEGER NOT NULL,
        primary_broker TEXT NOT NULL,
        members TEXT NOT NULL,
        version INTEGER NOT NULL,
        min_insync INTEGER NOT NULL,
        founding INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE brokers (
        group_name TEXT NOT NULL,
        broker TEXT NOT NULL,
        link TEXT NOT NULL,
        amqp TEXT NOT NULL,
        http TEXT NOT NULL,
        status TEXT NOT NULL,
        position INTEGER NOT NULL,
        blockers TEXT NOT NULL,
        pid INTEGER NOT NULL,
        started INTEGER NOT NULL,
        boot TEXT NOT NULL,
        pid_namespace TEXT NOT NULL,
        lease_until_ms INTEGER NOT NULL,
        PRIMARY KEY (group_name, broker)
    ) WITHOUT ROWID""",
    """CREATE TABLE forced_epochs (
        group_name TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        primary_broker TEXT NOT NULL,
        members TEXT NOT NULL,
        before TEXT NOT NULL,
        wall_ms INTEGER NOT NULL,
        PRIMARY KEY (group_name, epoch)
    ) WITHOUT ROWID""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_TABLES: Final = frozenset({"groups", "brokers", "forced_epochs"})
_LATER: Final = {
    "damaged": """CREATE TABLE IF NOT EXISTS damaged (
        group_name TEXT NOT NULL,
        broker TEXT NOT NULL,
        lacks TEXT NOT NULL,
        PRIMARY KEY (group_name, broker)
    ) WITHOUT ROWID""",
    "claims": """CREATE TABLE IF NOT EXISTS claims (
        group_name TEXT NOT NULL,
        broker TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        log_start INTEGER NOT NULL,
        durable INTEGER NOT NULL,
        PRIMARY KEY (group_name, broker)
    ) WITHOUT ROWID""",
    # Older programs leave the row of a successor behind when they begin an epoch: it counts in its own epoch alone.
    "successors": """CREATE TABLE IF NOT EXISTS successors (
        group_name TEXT PRIMARY KEY,
        epoch INTEGER NOT NULL,
        broker TEXT NOT NULL
    ) WITHOUT ROWID""",
    "barred": """CREATE TABLE IF NOT EXISTS barred (
        group_name TEXT NOT NULL,
        broker TEXT NOT NULL,
        barred_by TEXT NOT NULL,
        since TEXT NOT NULL,
        PRIMARY KEY (group_name, broker)
    ) WITHOUT ROWID""",
    "history": """CREATE TABLE IF NOT EXISTS history (
        number INTEGER PRIMARY KEY,
        group_name TEXT NOT NULL,
        wall_ms INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        version INTEGER NOT NULL,
        written_by TEXT NOT NULL,
        what TEXT NOT NULL
    )""",
}
"""Tables that older programs of this schema version do not know, and leave alone. Made by the first one that may write."""
_NEW: Final = (0, 0, frozenset[str]())


def _place(state: GroupState) -> tuple[int, int, int]:
    return state.founding, state.epoch, state.version


class StoreBusyError(StoreError):
    """Somebody else holds it for longer than this process waits; nothing was changed."""

    retriable = True


@attrs.frozen(kw_only=True)
class Process:
    """A process, so that it is not taken for a later one with the same number.

    Attributes:
        pid: in its ``pid_namespace``.
        started: when, in clock ticks after the machine; 0 if unknown.
        boot: the running of the machine that it belongs to.
        pid_namespace: which one.
    """

    pid: int
    started: int
    boot: str
    pid_namespace: str


@attrs.frozen(kw_only=True)
class BrokerRow:
    """A broker as it has published itself. ``lease_until_ms`` is of the machine's monotonic clock, in that boot."""

    info: BrokerInfo
    process: Process
    lease_until_ms: int


class CoordinationStore:
    """An open file.

    Args:
        path: of the file.
        create: make it, and the directories above it, if it is not there.
        read_only: change nothing; for looking at the store of others, dead or alive.
        busy_ms: how long to wait for somebody who holds it.

    Raises:
        StoreError: missing, unreadable, no SQLite database, of another program, of a newer schema.
        StoreBusyError: held by others for too long.
    """

    def __init__(self, path: Path, *, create: bool = False, read_only: bool = False, busy_ms: int = 2_000) -> None:
        self.path = path
        self._busy_ms = busy_ms
        self._durable = True
        self._commits = 0
        self._later: frozenset[str] = frozenset()
        self._look_for_file(create=create)
        mode = "ro" if read_only else "rwc" if create else "rw"
        with self._translated():
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=busy_ms / 1_000
            )
        try:
            with self._translated():
                self._check(create=create)
                if not read_only:
                    self._configure()
            stat = path.stat()
            self._inode = (stat.st_dev, stat.st_ino)
        except OSError as error:
            self.close()
            raise StoreError(f"coordination file {path}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def _look_for_file(self, *, create: bool) -> None:
        """See that there is a file, or, to ``create`` one, make it: SQLite gives the files beside it the same permissions."""
        path = self.path
        try:
            if create and not path.exists():
                try:
                    make_directory(path.parent)
                except OSError as error:
                    reason = f"its directory cannot be made: {error.strerror}"
                    raise StoreError(f"coordination file {path}: {reason}") from error
                with suppress(FileExistsError):  # a broker beside this one may be making it, too
                    path.touch(FILE_MODE, exist_ok=False)
            elif not path.is_file():
                raise StoreError(f"coordination file {path} {'is no file' if path.exists() else 'does not exist'}")
        except OSError as error:  # of a directory that may not be entered, or whose disk fails, it cannot be told
            raise StoreError(f"coordination file {path}: {error.strerror}") from error

    def close(self) -> None:
        self._connection.close()

    @property
    def in_place(self) -> bool:
        """The path still names the file that is open; if not, what is written here is seen by nobody."""
        try:
            stat = self.path.stat()
        except OSError:
            return False
        return (stat.st_dev, stat.st_ino) == self._inode

    @property
    def changes(self) -> int:
        """A number that differs if another connection has committed since it was last asked for. Cheap: 5 us."""
        with self._translated():
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    # -- reading --------------------------------------------------------------------------------------------------------

    def read(self, group: str) -> tuple[GroupState | None, dict[BrokerId, BrokerRow]]:
        """The group and its brokers at one moment."""
        with self._translated(), self._snapshot():
            return self._group(group), self._brokers(group)

    def _group(self, group: str) -> GroupState | None:
        row = self._connection.execute(
            "SELECT epoch, primary_broker, members, version, min_insync, founding FROM groups WHERE name = ?", (group,)
        ).fetchone()
        if row is None:
            return None
        epoch, primary, members, version, min_insync, founding = row
        return GroupState(
            epoch=epoch,
            primary=primary,
            members=tuple(json.loads(members)),
            version=version,
            min_insync=min_insync,
            founding=founding,
            forced=self._forced(group),
            damaged=self._damaged(group),
            successor=self._successor(group, epoch),
            barred=self._barred(group),
        )

    def _forced(self, group: str) -> int:
        row = self._connection.execute("SELECT MAX(epoch) FROM forced_epochs WHERE group_name = ?", (group,)).fetchone()
        return int(row[0] or 0)

    def _successor(self, group: str, epoch: int) -> BrokerId:
        if "successors" not in self._later:
            return ""
        row = self._connection.execute(
            "SELECT broker FROM successors WHERE group_name = ? AND epoch = ?", (group, epoch)
        ).fetchone()
        return str(row[0]) if row is not None else ""

    def _barred(self, group: str) -> tuple[Bar, ...]:
        if "barred" not in self._later:
            return ()
        rows = self._connection.execute(
            "SELECT broker, barred_by, since FROM barred WHERE group_name = ? ORDER BY broker", (group,)
        )
        return tuple(Bar(*row) for row in rows)

    def _damaged(self, group: str) -> tuple[Damage, ...]:
        if "damaged" not in self._later:
            return ()
        rows = self._connection.execute(
            "SELECT broker, lacks FROM damaged WHERE group_name = ? ORDER BY broker", (group,)
        )
        return tuple(Damage(broker, lacks) for broker, lacks in rows)

    def _claims(self, group: str) -> dict[BrokerId, DiskClaim]:
        if "claims" not in self._later:
            return {}
        rows = self._connection.execute(
            "SELECT broker, epoch, log_start, durable FROM claims WHERE group_name = ?", (group,)
        )
        return {broker: DiskClaim(epoch, log_start, durable) for broker, epoch, log_start, durable in rows}

    def _brokers(self, group: str) -> dict[BrokerId, BrokerRow]:
        rows = self._connection.execute(
            "SELECT broker, link, amqp, http, status, position, blockers, pid, started, boot, pid_namespace,"
            " lease_until_ms FROM brokers WHERE group_name = ? ORDER BY broker",
            (group,),
        )
        found = {}
        claims = self._claims(group)
        for broker, link, amqp, http, status, position, blockers, pid, started, boot, namespace, until_ms in rows:
            info = BrokerInfo(
                broker=broker,
                link=link,
                amqp=amqp,
                http=http,
                status=status,
                position=position,
                pid=pid,
                blockers=blockers,
                claim=claims.get(broker),
            )
            process = Process(pid=pid, started=started, boot=boot, pid_namespace=namespace)
            found[broker] = BrokerRow(info=info, process=process, lease_until_ms=until_ms)
        return found

    # -- the group: durable before the answer -----------------------------------------------------------------------------

    def found(
        self, group: str, state: GroupState, *, by: BrokerId = "", wall_ms: int = 0
    ) -> tuple[bool, GroupState | None]:
        """Write the first state; returns whether it was written, and what is held then. For ``by``: :meth:`replace`.

        Nothing is founded where a broker has shown that it holds a part of a group of this name.
        """
        with self._transaction(durable=True):
            held = self._group(group)
            if held is not None or self._claims(group):
                return False, held
            self._put_group(group, state)
            self._remember(group, state, by, wall_ms, change_text(None, state))
        return True, state

    def replace(
        self, group: str, expected: GroupState, wanted: GroupState, *, by: BrokerId = "", wall_ms: int = 0
    ) -> tuple[bool, GroupState | None]:
        """Write ``wanted`` if founding, epoch and version of ``expected`` are held; whether it was, and what is held then.

        The change is remembered with it: ``by`` whom ("" for a command) and when.
        """
        with self._transaction(durable=True):
            held = self._group(group)
            if held is None or _place(held) != _place(expected):
                return False, held
            self._put_group(group, wanted)
            self._remember(group, wanted, by, wall_ms, change_text(held, wanted))
        return True, wanted

    def restore(
        self, group: str, shown: GroupState | None, wanted: GroupState, *, by: BrokerId, wall_ms: int
    ) -> tuple[bool, GroupState | None]:
        """Write ``wanted`` if exactly ``shown`` is held (None: no group), and no higher epoch was ever recorded.

        Returns:
            Whether it was written, and what is held then.
        """
        with self._transaction(durable=True):
            held = self._group(group)
            if held != shown or self._highest_recorded(group) > wanted.epoch:
                return False, held
            self._put_group(group, wanted)
            self._remember(group, wanted, by, wall_ms, anew_text(held, wanted))
        return True, wanted

    def _highest_recorded(self, group: str) -> int:
        """The highest epoch of the history, forced ones included; 0 without any."""
        row = self._connection.execute("SELECT MAX(epoch) FROM history WHERE group_name = ?", (group,)).fetchone()
        return max(int(row[0] or 0), self._forced(group))

    def force(
        self,
        group: str,
        broker: BrokerId,
        members: tuple[BrokerId, ...],
        *,
        seen_epoch: int,
        wall_ms: int,
        expected: GroupState | None,
        min_insync: int | None,
        founding: int,
    ) -> GroupState:
        """Begin an epoch far above all that is known, whoever leads; it is recorded for good that this was done.

        Raises:
            StoreChangedError: the store does not hold ``expected`` any more.
        """
        with self._transaction(durable=True):
            held = self._group(group)
            if held != expected:
                raise StoreChangedError(
                    f"coordination file {self.path} has changed meanwhile: it holds {held}, not {expected}"
                )
            state = forced_group(
                held,
                broker,
                members,
                seen_epoch=seen_epoch,
                drawn=secrets.randbelow(EPOCHS_DRAWN),
                min_insync=min_insync,
                founding=founding,
            )
            self._connection.execute(
                "INSERT INTO forced_epochs VALUES (?, ?, ?, ?, ?, ?)",
                (group, state.epoch, broker, json.dumps(members), str(held), wall_ms),
            )
            self._put_group(group, state)
        return state

    def forced_epochs(self, group: str) -> list[tuple[int, BrokerId, int]]:
        """(epoch, broker, wall-clock ms) of each forced epoch, oldest first."""
        with self._translated():
            rows = self._connection.execute(
                "SELECT epoch, primary_broker, wall_ms FROM forced_epochs WHERE group_name = ? ORDER BY epoch", (group,)
            )
            return rows.fetchall()

    def history(self, group: str) -> list[HistoryEntry]:
        """The newest changes, oldest first. Forced epochs are elsewhere: :meth:`forced_epochs`."""
        if "history" not in self._later:
            return []
        with self._translated():
            rows = self._connection.execute(
                "SELECT wall_ms, epoch, version, written_by, what FROM history WHERE group_name = ? ORDER BY number",
                (group,),
            )
            return [
                HistoryEntry(wall_ms=wall_ms, epoch=epoch, version=version, by=by, what=what)
                for wall_ms, epoch, version, by, what in rows
            ]

    def _remember(self, group: str, after: GroupState, by: BrokerId, wall_ms: int, what: str) -> None:
        """Within the transaction that changes the group; what is too old goes."""
        row = (group, wall_ms, after.epoch, after.version, by, what)
        self._connection.execute(
            "INSERT INTO history (group_name, wall_ms, epoch, version, written_by, what) VALUES (?, ?, ?, ?, ?, ?)", row
        )
        self._connection.execute(
            "DELETE FROM history WHERE group_name = ? AND number NOT IN"
            " (SELECT number FROM history WHERE group_name = ? ORDER BY number DESC LIMIT ?)",
            (group, group, MAX_HISTORY),
        )

    def _put_group(self, group: str, state: GroupState) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                group,
                state.epoch,
                state.primary,
                json.dumps(state.members),
                state.version,
                state.min_insync,
                state.founding,
            ),
        )
        self._connection.execute("DELETE FROM damaged WHERE group_name = ?", (group,))
        self._connection.executemany(
            "INSERT INTO damaged VALUES (?, ?, ?)", [(group, each.broker, each.lacks) for each in state.damaged]
        )
        self._connection.execute("DELETE FROM successors WHERE group_name = ?", (group,))
        if state.successor:
            self._connection.execute("INSERT INTO successors VALUES (?, ?, ?)", (group, state.epoch, state.successor))
        self._connection.execute("DELETE FROM barred WHERE group_name = ?", (group,))
        self._connection.executemany(
            "INSERT INTO barred VALUES (?, ?, ?, ?)",
            [(group, each.broker, each.by, each.since) for each in state.barred],
        )

    # -- brokers: gone with a reboot ----------------------------------------------------------------------------------------

    def publish(self, group: str, row: BrokerRow) -> None:
        """Write a broker and its lease."""
        info, process = row.info, row.process
        # Names of queues and paths in it need not be UTF-8. SQLite would take no text with the lone surrogates that they become.
        blockers = info.blockers.encode(errors="backslashreplace").decode()
        shown = (info.link, info.amqp, info.http, info.status, info.position, blockers)
        lease = (process.pid, process.started, process.boot, process.pid_namespace, row.lease_until_ms)
        with self._transaction(durable=False):
            self._connection.execute(
                "INSERT OR REPLACE INTO brokers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (group, info.broker, *shown, *lease),
            )
            if info.claim is not None:
                self._connection.execute(
                    "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?)",
                    (group, info.broker, info.claim.epoch, info.claim.log_start, info.claim.durable),
                )

    def renew(self, group: str, broker: BrokerId, process: Process, lease_until_ms: int) -> bool:
        """Write a lease alone; False if ``process`` is not the one that has published itself as ``broker``."""
        with self._transaction(durable=False):
            changed = self._connection.execute(
                "UPDATE brokers SET lease_until_ms = ? WHERE group_name = ? AND broker = ? AND pid = ? AND started = ?"
                " AND boot = ? AND pid_namespace = ?",
                (lease_until_ms, group, broker, process.pid, process.started, process.boot, process.pid_namespace),
            ).rowcount
        return changed == 1

    # -- SQLite -------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self, *, durable: bool) -> Iterator[None]:
        """Alone among the writers, from the first read on. An exception undoes all."""
        with self._translated():
            if durable != self._durable:
                self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                self._end()
            self._commits += 1
            if self._commits % CHECKPOINT_COMMITS == 0:
                self._checkpoint()

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """All that is read is of one moment."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        """Give up what has not been committed."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _checkpoint(self) -> None:
        """Write the WAL back and empty it. If that cannot be done now, somebody will after some later commit."""
        with suppress(sqlite3.OperationalError):
            self._connection.execute(f"PRAGMA busy_timeout = {min(CHECKPOINT_WAIT_MS, self._busy_ms)}")
            try:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {self._busy_ms}")

    def _check(self, *, create: bool) -> None:
        """Whose database is this, and of which version? A new one gets the schema."""
        with self._snapshot():
            identity = self._identity()
        if create and identity == _NEW:
            self._make()
            with self._snapshot():
                identity = self._identity()
        application, version, tables = identity
        if identity == _NEW:
            raise StoreError(f"coordination file {self.path} is empty")
        if application != APPLICATION_ID:
            raise StoreError(f"coordination file {self.path} is a SQLite database of another program")
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"coordination file {self.path} has schema version {version}, this program knows version {SCHEMA_VERSION}"
            )
        if not tables >= _TABLES:
            missing = ", ".join(sorted(_TABLES - tables))
            raise StoreError(f"coordination file {self.path} is damaged: it lacks the tables {missing}")
        self._later = tables & _LATER.keys()

    def _make(self) -> None:
        """Write the schema, unless another broker is quicker."""
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            if self._identity() == _NEW:
                for statement in _SCHEMA:
                    self._connection.execute(statement)
            self._connection.execute("COMMIT")
        finally:
            self._end()

    def _identity(self) -> tuple[int, int, frozenset[str]]:
        """Application, schema version, tables. Ask within a transaction: somebody may be writing them just now."""
        execute = self._connection.execute
        return (
            execute("PRAGMA application_id").fetchone()[0],
            execute("PRAGMA user_version").fetchone()[0],
            frozenset(name for (name,) in execute("SELECT name FROM sqlite_master WHERE type = 'table'")),
        )

    def _configure(self) -> None:
        (mode,) = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(
                f"coordination file {self.path}: its file system cannot do what WAL needs (journal mode {mode})"
            )
        self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        self._connection.execute("PRAGMA synchronous = FULL")
        if self._later != _LATER.keys():
            with self._transaction(durable=True):
                for statement in _LATER.values():
                    self._connection.execute(statement)
            self._later = frozenset(_LATER)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of SQLite, and those of damaged rows, into errors that name the file."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise StoreBusyError(f"coordination file {self.path} is held by another process: {error}") from error
            raise StoreError(f"coordination file {self.path} cannot be used: {error}") from error
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"coordination file {self.path} holds what was not written by this program: {error}"
            ) from error
