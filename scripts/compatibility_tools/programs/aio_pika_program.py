"""aio-pika's patterns over `connect_robust`: RPC with a result for each call, and Master with tasks for workers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
from aio_pika.patterns import RPC, Master
from books import URL, Worker, finish, kill, note, wait_until_done

TASKS = 80
CALLS = 60
ATTEMPTS = 100
ANSWER_S = 3.0


async def double(*, number: int) -> int:
    """Answer a call."""
    await asyncio.sleep(0.01)
    return 2 * number


async def work(*, identity: str) -> None:
    """Do one task of the master."""
    await asyncio.sleep(0.01)
    note(identity)


async def serve() -> None:
    """Answer calls, and do tasks, until the process is stopped."""
    connection = await aio_pika.connect_robust(URL, reconnect_interval=0.2)
    rpc = await RPC.create(await connection.channel())
    await rpc.register("double", double)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=8)
    await Master(channel).create_worker("work", work, durable=True)
    print("serving", flush=True)
    await asyncio.Event().wait()


async def patiently(attempt_once: Callable[[], Awaitable[Any]]) -> Any:
    """Do something again until it succeeds: the connection comes back by itself."""
    for attempt in range(ATTEMPTS):
        try:
            return await asyncio.wait_for(attempt_once(), ANSWER_S)
        except Exception:
            if attempt == ATTEMPTS - 1:
                raise
            await asyncio.sleep(0.1)
    raise AssertionError("unreachable")


async def main() -> None:
    """Send tasks and make calls, have the primary killed twice, and wait for all of them."""
    sent: list[str] = []
    right = 0
    connection = await aio_pika.connect_robust(URL, reconnect_interval=0.2)
    master = Master(await connection.channel())
    rpc = await RPC.create(await connection.channel())
    with Worker("worker", __file__, "serve") as worker:
        await asyncio.to_thread(worker.has_said, "serving")
        for number in range(TASKS):
            sent.append(f"task-{number}")
            identity = sent[-1]
            await patiently(lambda identity=identity: master.create_task("work", {"identity": identity}))
            if number == TASKS // 2:
                kill(1)
        for number in range(CALLS):
            if number == CALLS // 2:
                kill(2)
            answer = await patiently(lambda number=number: rpc.call("double", {"number": number}))
            right += answer == 2 * number
        await asyncio.to_thread(wait_until_done, sent)
    await connection.close()
    finish(sent, every_call_has_its_answer=right == CALLS)


if __name__ == "__main__":
    asyncio.run(serve() if sys.argv[1:] == ["serve"] else main())
