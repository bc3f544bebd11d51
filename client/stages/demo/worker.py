"""A worker of the demonstration that ends itself with SIGKILL at named points, by chance.

    python -m understudy.client.stages.demo.worker SHOP all|relay CHANCE POINT LOG

SHOP is the module of the application. ``relay`` runs no stage: it sends what others have left in the outbox. At each point, or at
POINT alone if it is not "", the worker ends with the probability CHANCE; before that it writes the point and the stage into LOG.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
from importlib import import_module
from typing import Final

from understudy.client.stages import Stages
from understudy.client.stages.application.worker import Worker
from understudy.client.stages.broker.connection import Connection
from understudy.client.stages.slots.relay import Relay
from understudy.client.stages.watching.points import AtPoint, Point

RELAY_GRACE_S: Final = 1.0
RELAY_LEASE_S: Final = 3.0


def command(shop: str, kind: str, chance: float, only: str, log: str) -> list[str]:
    """The arguments of the interpreter."""
    return ["-m", "understudy.client.stages.demo.worker", shop, kind, str(chance), only, log]


def main(shop: str, kind: str, chance: float, only: str, log: str) -> None:
    stages: Stages = import_module(shop).stages

    def at_point(point: Point, stage: str) -> None:
        if only in {"", point.value} and random.random() < chance:  # noqa: S311  # chance for a load
            with open(log, "a", encoding="utf-8") as file:  # noqa: PTH123  # one write, which others' writes do not tear
                file.write(f"{point.value}\t{stage}\n")
            os.kill(os.getpid(), signal.SIGKILL)

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(_relay(stages, at_point) if kind == "relay" else _work(stages, at_point))


async def _work(stages: Stages, at_point: AtPoint) -> None:
    worker = Worker(stages, relay_grace_s=RELAY_GRACE_S, relay_lease_s=RELAY_LEASE_S, at_point=at_point)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


async def _relay(stages: Stages, at_point: AtPoint) -> None:
    database = stages.database
    assert database is not None
    connection, session = Connection(stages.addresses, "relay"), database.relay_session()
    relay = Relay(
        connection, session, None, at_point,
        grace_s=RELAY_GRACE_S, lease_s=RELAY_LEASE_S, retention=stages.inbox_retention,
    )  # fmt: skip
    task = asyncio.create_task(relay.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await connection.close()
    await session.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), *sys.argv[4:])
