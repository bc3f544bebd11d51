"""Router: the front of a state server with several workers. It accepts the clients and passes each request to one worker.

A worker is a state server of some of the shards, in a process of its own, on a socket in a private folder. The router has one
connection to it for each client that needs it, so a worker sees when a client is gone; and one more, on which the worker says what
waits for recovery. A worker that is killed is started again, and its shards tell what they were doing; until then no client
begins, claims or comes. A worker that ends by itself ends the whole server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import attrs
import msgspec

from understudy.xa.core.errors import StateServerError
from understudy.xa.core.register.routing import Routes, merged
from understudy.xa.core.register.wire import (
    MAX_LINE_OCTETS,
    Begin,
    Claim,
    Claimed,
    Done,
    Enter,
    Failed,
    Forget,
    Hello,
    List,
    Listing,
    Nothing,
    Ok,
    Refused,
    Release,
    Reply,
    Request,
    Rule,
    Settle,
    Take,
    Waits,
    Watch,
    line_of,
    reply_of,
)
from understudy.xa.state_server.door import BUFFER_OCTETS, Door, Visitor, read_line
from understudy.xa.state_server.entrance import Entrance
from understudy.xa.state_server.listening import listening
from understudy.xa.state_server.stores import say
from understudy.xa.state_server.worker import PASSWORD_VARIABLE, Settings

STOP_S: Final = 20.0
AGAIN_S: Final = 0.05
CLAIM_S: Final = 1.0
"""How long a claim is tried while a worker has not said yet that another client was quicker."""
HELLO_S: Final = 10.0
"""How long a client that comes is offered to workers that are killed: a new worker serves after less than this."""


Ready = Callable[[str, list[int], int], None]
"""Told the address, the process ids of the workers, and how many transactions wait for recovery."""


class WorkerEndedError(StateServerError):
    """A worker has ended by itself, and said why.

    Attributes:
        code: its exit code.
    """

    def __init__(self, number: int, code: int) -> None:
        self.code = code
        super().__init__(f"worker {number} has ended with code {code}")


@attrs.define
class _Client:
    """One connection of a client.

    Attributes:
        current: worker of its next transaction.
        links: worker to the connection that the router has to it for this client.
        owns: global id to the worker that has the transaction.
        gave_way: workers of which it has released a transaction since: the others are asked first.
    """

    hello: Hello | None = None
    current: int = 0
    links: dict[int, _Link] = attrs.field(factory=dict)
    owns: dict[str, int] = attrs.field(factory=dict)
    gave_way: set[int] = attrs.field(factory=set)


class _Link:
    """A connection to a worker. EOFError if it is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, path: str) -> _Link:
        return cls(*await asyncio.open_unix_connection(path, limit=BUFFER_OCTETS))

    async def ask(self, request: Request) -> Reply:
        self._writer.write(line_of(request))
        return await self.reply()

    async def reply(self) -> Reply:
        line = await read_line(self._reader, MAX_LINE_OCTETS)
        if not line:
            raise EOFError("the worker is gone")
        return reply_of(line)

    def close(self) -> None:
        self._writer.transport.abort()


class Router:
    """One server over its workers.

    Args:
        parts: the shards of each worker.
        settings: of a worker, but for its socket and its shards.
        password: of the decision log.
    """

    def __init__(self, parts: Sequence[range], settings: Settings, password: str) -> None:
        self._parts = list(parts)
        self._settings = settings
        self._password = password
        self._routes = Routes(parts)
        self._up = [asyncio.Event() for _ in parts]
        self._folder = Path()

    async def serve(self, entrance: Entrance, *, ready: Ready) -> None:
        """Serve until cancelled.

        Args:
            entrance: where, and for whom; see `listening`, and its errors.
            ready: called when clients can connect.

        Raises:
            WorkerEndedError: a worker cannot go on.
        """
        with tempfile.TemporaryDirectory(prefix="understudy-state-") as folder:
            self._folder = Path(folder)
            self._pids = [0 for _ in self._parts]
            async with asyncio.TaskGroup() as tasks:
                for number in range(len(self._parts)):
                    tasks.create_task(self._keep(number))
                await self._all_up()
                door = Door(entrance.secrets, self._client)
                server, address = await listening(entrance.address, door.open_to, entrance.tls)
                ready(address, self._pids, self._routes.waiting)
                try:
                    await server.serve_forever()
                finally:
                    door.turn_out()

    async def _all_up(self) -> None:
        for up in self._up:
            await up.wait()

    # -- workers ------------------------------------------------------------------------------------------------------

    async def _keep(self, number: int) -> None:
        """Run a worker, and start it again when it was killed."""
        while True:
            process = await self._spawn(number)
            self._pids[number] = process.pid
            watching = asyncio.create_task(self._watch(number, process))
            try:
                code = await process.wait()
            finally:
                watching.cancel()
                self._up[number].clear()
                self._routes.forget(number)
                if process.returncode is None:
                    await _ended(process)
            if code >= 0:
                raise WorkerEndedError(number, code)
            say(f"worker {number} was ended by signal {-code}; it is started again, and its shards recover")

    async def _spawn(self, number: int) -> asyncio.subprocess.Process:
        part = self._parts[number]
        settings = msgspec.structs.replace(self._settings, socket=self._path(number), first=part.start, count=len(part))
        lock = settings.lock
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "understudy.xa.state_server.worker", msgspec.json.encode(settings).decode(),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(lock,) if lock >= 0 else (),
            env={**os.environ, PASSWORD_VARIABLE: self._password},
            start_new_session=True,
        )  # fmt: skip

    async def _watch(self, number: int, process: asyncio.subprocess.Process) -> None:
        """Be told what waits for recovery in the shards of a worker."""
        link: _Link | None = None
        try:
            link = await self._linked(number, process)
            reply = await link.ask(Watch())
            while True:
                match reply:
                    case Waits():
                        self._routes.told(reply)
                    case Ok():
                        self._up[number].set()
                    case _:
                        raise AssertionError(reply)
                reply = await link.reply()
        except (OSError, EOFError):
            pass  # it is gone, and `_keep` knows; a signal by `process` could take its exit code away from there
        finally:
            if link is not None:
                link.close()

    async def _linked(self, number: int, process: asyncio.subprocess.Process) -> _Link:
        while process.returncode is None:
            with contextlib.suppress(OSError):
                return await _Link.to(self._path(number))
            await asyncio.sleep(AGAIN_S)
        raise EOFError("the worker is gone")

    def _path(self, number: int) -> str:
        return str(self._folder / f"worker-{number}")

    # -- clients ------------------------------------------------------------------------------------------------------

    async def _client(self, visitor: Visitor, writer: asyncio.StreamWriter) -> None:
        client = _Client()
        try:
            while (request := await visitor.request()) is not None:
                writer.write(line_of(await self._answer(client, request)))
                await writer.drain()
        except (OSError, EOFError, ValueError):  # ValueError: a line longer than the limit; EOFError: a worker is gone
            pass
        finally:
            if client.hello is not None:
                self._routes.loads[client.current] -= 1
            for link in client.links.values():
                link.close()

    async def _answer(self, client: _Client, request: Request) -> Reply:  # noqa: PLR0911  # one for each request
        if isinstance(request, Hello) and client.hello is None:
            return await self._hello(client, request)
        if client.hello is None:
            return Refused("protocol", "the first request of a connection is hello")
        match request:
            case Watch():
                return Refused("protocol", "watch is not for clients")
            case Begin(gid):
                await self._all_up()
                if self._routes.recovering(client.hello.job, client.current) is not None:
                    return Refused("recover_first", f"job {client.hello.job} has transactions to recover")
                return self._owned(client, gid, await self._ask(client, client.current, request))
            case Claim():
                return await self._claim(client, client.hello.job, request)
            case Take() | Forget() | Enter():
                return await self._anywhere(client, request)
            case Rule():
                known = await self._anywhere(client, msgspec.structs.replace(request, new=False))
                unknown = isinstance(known, Refused) and known.code == "unknown" and request.new
                return await self._ask(client, client.current, request) if unknown else known
            case List():
                return await self._list(client, request)
            case Hello():
                return await self._ask(client, client.current, request)
            case Done() | Release() | Failed() | Settle():
                return await self._let_go(client, request)
            case _:
                return await self._ask(client, client.owns.get(request.gid, client.current), request)

    async def _hello(self, client: _Client, hello: Hello) -> Reply:
        """Give the client to a worker. A worker that was killed is not missed at once: then the next one is asked.

        So a client that comes while a worker starts again waits, and meets no error: it owns nothing yet.
        """
        deadline = asyncio.get_running_loop().time() + HELLO_S
        while True:
            await self._all_up()
            worker = self._routes.arrival(hello.job)
            self._routes.loads[worker] += 1
            try:
                link = await _Link.to(self._path(worker))
                client.links[worker] = link
                reply = await link.ask(hello)
            except (OSError, EOFError):
                self._routes.loads[worker] -= 1
                if worker in client.links:
                    client.links.pop(worker).close()
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(AGAIN_S)
            else:
                client.current, client.hello = worker, hello
                return reply

    async def _claim(self, client: _Client, job: str, claim: Claim) -> Reply:
        """Step 1: the own worker, all of it. Step 2: the first shard that has something; the client moves there."""
        deadline = asyncio.get_running_loop().time() + CLAIM_S
        while True:
            await self._all_up()
            found = self._routes.recovering(job, client.current, client.gave_way)
            if found is None:
                client.gave_way.clear()
                found = self._routes.recovering(job, client.current)
            if found is not None and found != client.current:
                self._routes.loads[client.current] -= 1
                client.current = found
                self._routes.loads[found] += 1
            reply = await self._ask(client, client.current, claim)
            if isinstance(reply, Claimed):
                return self._owned(client, reply.entry.gid, reply)
            late = asyncio.get_running_loop().time() > deadline
            if not isinstance(reply, Nothing) or late or self._routes.recovering(job, client.current) is None:
                return await self._claim_early(client, claim) if claim.early and isinstance(reply, Nothing) else reply
            await asyncio.sleep(AGAIN_S)

    async def _claim_early(self, client: _Client, claim: Claim) -> Reply:
        """Ask each worker: a transaction that is not due is in no table of the front."""
        reply: Reply = Nothing()
        for number in range(len(self._parts)):
            reply = await self._ask(client, number, claim)
            if isinstance(reply, Claimed):
                return self._owned(client, reply.entry.gid, reply, number)
        return reply

    async def _let_go(self, client: _Client, request: Done | Release | Failed | Settle) -> Reply:
        worker = client.owns.pop(request.gid, client.current)
        if isinstance(request, Release):
            client.gave_way.add(worker)
        return await self._ask(client, worker, request)

    async def _anywhere(self, client: _Client, request: Take | Forget | Rule | Enter) -> Reply:
        """Ask by a global id that the client need not own: the worker that knows it answers."""
        await self._all_up()
        reply: Reply = Refused("unknown", f"transaction {request.gid} is not known")
        for number in range(len(self._parts)):
            reply = await self._ask(client, number, request)
            if not (isinstance(reply, Refused) and reply.code == "unknown"):
                return self._owned(client, request.gid, reply, number)
        return reply

    async def _list(self, client: _Client, request: List) -> Reply:
        await self._all_up()
        pages = [await self._ask(client, number, request) for number in range(len(self._parts))]
        return merged([page for page in pages if isinstance(page, Listing)])

    def _owned(self, client: _Client, gid: str, reply: Reply, worker: int | None = None) -> Reply:
        if not isinstance(reply, Refused):
            client.owns[gid] = client.current if worker is None else worker
        return reply

    async def _ask(self, client: _Client, worker: int, request: Request) -> Reply:
        assert client.hello is not None
        if worker not in client.links:
            client.links[worker] = link = await _Link.to(self._path(worker))
            await link.ask(client.hello)  # a refusal of the profile is repeated when it matters
        return await client.links[worker].ask(request)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End a worker: its input ends, and it writes what it has."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
