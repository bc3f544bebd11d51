"""One worker process of a state server with several: a state server of some of the shards, on a socket of its own.

It is started by `router` with its settings as JSON, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from understudy.xa.core.errors import XaError
from understudy.xa.core.profiles.log_address import LogAddress
from understudy.xa.core.register.state import StateCore
from understudy.xa.state_server.entrance import Entrance
from understudy.xa.state_server.server import OnStep, StateServer
from understudy.xa.state_server.stores import Where, opened, read, say

EXIT_USAGE: Final = 2
PASSWORD_VARIABLE: Final = "UNDERSTUDY_STATE_WORKER"  # noqa: S105  # the name of a variable


class Settings(msgspec.Struct, frozen=True):
    """The settings of a worker. The password of the decision log comes in the environment.

    Attributes:
        socket: path of its socket.
        first, count: its shards.
        lock: descriptor that holds the lock of the folder; -1: engine queue.
    """

    socket: str
    first: int
    count: int
    engine: str
    data: str = ""
    hosts: list[str] = []
    user: str = ""
    vhost: str = "/"
    tls: dict[str, str] | None = None
    queue: str = ""
    owner_wait_s: float | None = None
    lock: int = -1
    sync_delay_ms: float = 0
    max_attempts: int = 10

    @property
    def where(self) -> Where:
        address = None
        if self.hosts:
            password = os.environ.get(PASSWORD_VARIABLE, "")
            address = LogAddress(tuple(self.hosts), self.user, password, self.vhost, self.tls)
        return Where(
            engine=self.engine,
            data=Path(self.data) if self.data else None,
            address=address,
            queue=self.queue,
            owner_wait_s=self.owner_wait_s,
            lock=self.lock if self.lock >= 0 else None,
        )


def main(text: str, on_step: OnStep | None = None) -> int:
    """Run one worker until its input ends; the exit code is that of the command."""
    settings = msgspec.json.decode(text.encode(), type=Settings)
    part = range(settings.first, settings.first + settings.count)
    try:
        with opened(settings.where, 0, force_empty=False, only=part) as files:
            core = StateCore([read(file, settings.where) for file in files], settings.max_attempts, settings.first)
            server = StateServer(files, core, sync_delay_ms=settings.sync_delay_ms, on_step=on_step)
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(_until_input_ends(server, Entrance(address=f"unix:{settings.socket}")))
            for file in files:
                file.sync()
    except XaError as error:
        say(str(error))
        return EXIT_USAGE
    return 0


async def _until_input_ends(server: StateServer, entrance: Entrance) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), task.cancel)
    await server.serve(entrance, ready=lambda _: None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
