"""StateServer: the asyncio edge of the state server.

Requests are decided as they come. A record goes to the status file of its shard at once; the reply waits until a sync covers it.
While a sync runs in a thread, what arrives is the next group. A claim waits for the records of its shard before it, too: a client
must not act on a decision that a power failure could take back. A list is for people: it waits for one shard. If another server
could have become the owner of the status meanwhile (engine `queue`), a claim waits for a sync of its own, which proves that none
has.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from understudy.xa.core.errors import XaError
from understudy.xa.core.register.entry import Entry, Record
from understudy.xa.core.register.state import Reaction, StateCore
from understudy.xa.core.register.wire import (
    Claimed,
    Listing,
    Ok,
    Waits,
    Watch,
    line_of,
)
from understudy.xa.core.status.journal_file import StatusStore
from understudy.xa.state_server.door import Door, Visitor
from understudy.xa.state_server.entrance import Entrance
from understudy.xa.state_server.listening import listening

EXIT_DISK: Final = 74
SOON_S: Final = 0.2
"""A record for which no reply waits is synced at the latest after this."""
TICK_S: Final = 0.25
"""How late a recovery may be due."""
OnStep = Callable[[str], None]


def _no_step(_label: str) -> None:
    pass


@attrs.define
class _Held:
    """A reply that waits for a sync."""

    sequence: int
    line: bytes
    writer: asyncio.StreamWriter
    label: str


class StateServer:
    """One server over the open status files of its shards.

    Args:
        files: one for each shard, open.
        core: made of what the files hold.
        sync_delay_ms: how long a sync waits for company.
        on_step: called with a name before and after each record, sync and reply; see `session`.
    """

    def __init__(
        self, files: Sequence[StatusStore], core: StateCore, *, sync_delay_ms: float = 0, on_step: OnStep | None = None
    ) -> None:
        self._files = files
        self._core = core
        self._delay_s = sync_delay_ms / 1000
        self._on_step = on_step or _no_step
        self._held: list[deque[_Held]] = [deque() for _ in files]
        self._wake = [asyncio.Event() for _ in files]
        self._numbers = itertools.count(1)
        self._soon: set[int] = set()
        self._watchers: set[asyncio.StreamWriter] = set()
        core.pending.subscribe(self._changed)
        self.syncs = 0

    async def serve(self, entrance: Entrance, *, ready: Callable[[str], None]) -> None:
        """Serve until cancelled.

        Args:
            entrance: where, and for whom; see `listening`, and its errors.
            ready: told the address when clients can connect.
        """
        door = Door(entrance.secrets, self._client)
        server, address = await listening(entrance.address, door.open_to, entrance.tls)
        async with server, asyncio.TaskGroup() as tasks:
            for shard in range(len(self._files)):
                tasks.create_task(self._sync_when_asked(shard))
            tasks.create_task(self._tick())
            ready(address)
            try:
                await server.serve_forever()
            finally:
                door.turn_out()
                for file in self._files:
                    file.stop()

    async def _tick(self) -> None:
        """Put what is due again into the table of what waits, also if no client asks here: the front looks at the table."""
        while True:
            await asyncio.sleep(TICK_S)
            self._core.tick(time.time_ns() // 1_000_000)

    # -- clients ------------------------------------------------------------------------------------------------------

    async def _client(self, visitor: Visitor, writer: asyncio.StreamWriter) -> None:
        connection = next(self._numbers)
        try:
            while (request := await visitor.request()) is not None:
                if isinstance(request, Watch):
                    self._watch(writer)
                    continue
                label = type(request).__name__.lower()
                self._react(self._core.received(connection, request, time.time_ns() // 1_000_000), writer, label)
                await writer.drain()
        except (OSError, ValueError):  # ValueError: a line longer than the limit
            pass
        finally:
            self._core.left(connection)
            self._watchers.discard(writer)

    def _watch(self, writer: asyncio.StreamWriter) -> None:
        """Tell all that waits for recovery, then `Ok`, then each change."""
        for job, shard, gid in self._core.pending:
            writer.write(line_of(Waits(job, self._core.first + shard, gid, True)))
        writer.write(line_of(Ok()))
        self._watchers.add(writer)

    def _changed(self, job: str, shard: int, gid: str, waits: bool) -> None:
        for writer in self._watchers:
            writer.write(line_of(Waits(job, self._core.first + shard, gid, waits)))

    def _react(self, reaction: Reaction, writer: asyncio.StreamWriter, label: str) -> None:
        file = self._files[reaction.shard]
        if reaction.record is not None:
            self._append(file, [reaction.record], label)
        elif file.shared and isinstance(reaction.reply, (Claimed, Listing)):
            self._append(file, [], label)
        held = _Held(file.sequence, line_of(reaction.reply), writer, label)
        if reaction.at_once or file.durable >= held.sequence:
            self._send(held)
            if file.durable < file.sequence:
                self._sync_soon(reaction.shard)
        else:
            self._held[reaction.shard].append(held)
            self._wake[reaction.shard].set()

    def _sync_soon(self, shard: int) -> None:
        """Sync what no reply waits for, too, when the server has little to do."""
        if shard not in self._soon:
            self._soon.add(shard)
            asyncio.get_running_loop().call_later(SOON_S, self._wake[shard].set)

    def _append(self, file: StatusStore, records: Sequence[Record], label: str) -> None:
        self._on_step(f"append.{label}.before")
        try:
            file.append(records)
        except OSError as error:
            _die(error)
        self._on_step(f"append.{label}.after")

    def _send(self, held: _Held) -> None:
        self._on_step(f"reply.{held.label}.before")
        held.writer.write(held.line)
        self._on_step(f"reply.{held.label}.after")

    # -- the disk -----------------------------------------------------------------------------------------------------

    async def _sync_when_asked(self, shard: int) -> None:
        file, held, wake = self._files[shard], self._held[shard], self._wake[shard]
        now = asyncio.get_running_loop().time
        ticked = now()
        while True:
            if now() - ticked >= file.tick_s:
                await _on_disk(file.tick)
                ticked = now()
            try:
                async with asyncio.timeout(max(ticked + file.tick_s - now(), 0)):
                    await wake.wait()
            except TimeoutError:
                continue
            wake.clear()
            self._soon.discard(shard)
            if file.durable == file.sequence:
                continue
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            labels = [one.label for one in held]
            for label in labels:
                self._on_step(f"sync.{label}.before")
            if file.wants_rotation:
                _rotate(file, self._core.image(shard))
            if file.durable < file.sequence:
                file.seal()
                await _on_disk(file.sync)
            self.syncs += 1
            for label in labels:
                self._on_step(f"sync.{label}.after")
            while held and held[0].sequence <= file.durable:
                self._send(held.popleft())


def _rotate(file: StatusStore, entries: Sequence[Entry]) -> None:
    try:
        file.rotate(entries)
    except OSError as error:
        _die(error)


async def _on_disk(call: Callable[[], None]) -> None:
    try:
        await asyncio.to_thread(call)
    except (OSError, XaError) as error:
        _die(error)


def _die(error: Exception) -> None:
    """End the process: after a failed write or sync only reading anew tells what is on the disk."""
    print(f"understudy state-server: the status cannot be written: {error}", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(EXIT_DISK)
