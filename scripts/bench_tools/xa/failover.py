"""Failover with prepared branches by the thousand: the primary of a group of three is killed, the next one lists them all."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from bench_tools.understudy import LEADING, Understudy
from bench_tools.xa.branches import await_listed, prepare_branch
from bench_tools.xa.settings import QUEUE
from understudy.xa.core.xid import global_id
from understudy.xa.resource_managers.broker import BrokerResource


def measure(folder: Path, program: Path, number: int, say: Callable[[str], None]) -> float:
    """Seconds from the kill until the new primary has listed so many branches.

    Raises:
        BenchError: the group does not come up, or the list is not complete in time.
    """
    group = Understudy(folder, program, 3)
    group.start()
    try:
        rows = group.brokers()
        options = {
            "addresses": [f"127.0.0.1:{row['port']}" for row in rows],
            "vhost": "/",
            "user": "guest",
            "password": "guest",
            "timeout_s": 30,
            "form": "methods",
        }
        queues = BrokerResource("queues", options)
        queues.open()
        queues.resource.queue_declare(QUEUE, durable=True, auto_delete=False)
        for _ in range(number):
            prepare_branch(queues, global_id(uuid.uuid1().bytes, uuid.uuid4().bytes))
        queues.close()
        (primary,) = (row for row in rows if str(row["status"]).lower() in LEADING)
        began = time.monotonic()
        os.kill(int(primary["pid"]), signal.SIGKILL)
        await_listed(queues, number)
        took_s = time.monotonic() - began
        queues.close()
    finally:
        group.stop()
    say(f"{number} branches: group of three: primary killed to listed: {took_s:.2f} s")
    return took_s
