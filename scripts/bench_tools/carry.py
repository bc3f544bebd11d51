"""``scripts/bench carry``: what it costs to reach the primary through a backup (docs/performance.md, Carried clients).

One cluster, and in the same seconds the same work over a connection to the primary and over one to a backup: figures are to be
compared with each other, not with those of another run. The clients speak frames, so that a library's own time is not in them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench_tools.processes import cpu_seconds
from bench_tools.understudy import Understudy
from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.frames import FrameParser
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_GET,
    BASIC_GET_EMPTY,
    CHANNEL_OPEN,
    CHANNEL_OPEN_OK,
    CONFIRM_SELECT,
    CONFIRM_SELECT_OK,
    CONNECTION_OPEN,
    CONNECTION_OPEN_OK,
    CONNECTION_START,
    CONNECTION_START_OK,
    CONNECTION_TUNE,
    CONNECTION_TUNE_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties

FRAME_MAX = 131_072
PERSISTENT = encode_properties(delivery_mode=2)
BODY = b"x" * 1_024
BURST = 100
HANDSHAKE = (
    (PROTOCOL_HEADER, CONNECTION_START),
    (encode_method(0, CONNECTION_START_OK, {}, "PLAIN", b"\0guest\0guest", "en_US"), CONNECTION_TUNE),
    (
        encode_method(0, CONNECTION_TUNE_OK, 2_047, FRAME_MAX, 0) + encode_method(0, CONNECTION_OPEN, "/"),
        CONNECTION_OPEN_OK,
    ),
)


class Client:
    """A connection with one channel; blocking."""

    def __init__(self, port: int, queue: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._parser = FrameParser(FRAME_MAX)
        self._queue = queue
        for said, answer in HANDSHAKE:
            self._ask(said, answer)
        self._ask(encode_method(1, CHANNEL_OPEN), CHANNEL_OPEN_OK)
        self._ask(encode_method(1, QUEUE_DECLARE, queue, False, True, False, False, False, {}), QUEUE_DECLARE_OK)
        self._ask(encode_method(1, CONFIRM_SELECT, False), CONFIRM_SELECT_OK)
        self._get = encode_method(1, BASIC_GET, f"{queue}.empty", True)
        declare = encode_method(1, QUEUE_DECLARE, f"{queue}.empty", False, True, False, False, False, {})
        self._ask(declare, QUEUE_DECLARE_OK)
        self._confirmed = self._published = 0

    def _ask(self, said: bytes, answer: int) -> None:
        self._socket.sendall(said)
        keys: list[int] = []
        while answer not in keys:
            keys = [event[1] for event in self._parser.feed(self._read())]

    def _read(self) -> bytes:
        data = self._socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker has closed the connection")
        return data

    def ask(self) -> None:
        """A question that the broker answers without a log: basic.get of an empty queue."""
        self._ask(self._get, BASIC_GET_EMPTY)

    def publish(self, count: int = 1) -> None:
        """Messages in one write, and their confirms."""
        self._socket.sendall(publish_frames(1, "", self._queue, PERSISTENT, BODY, FRAME_MAX) * count)
        self._published += count
        while self._confirmed < self._published:
            for event in self._parser.feed(self._read()):
                if event[1] == BASIC_ACK:
                    self._confirmed = event[2][0]


def times_us(works: Sequence[Callable[[], None]], rounds: int) -> list[list[float]]:
    """How long each of the works takes, round by round, one after the other."""
    took: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, each in zip(works, took, strict=True):
            began = time.perf_counter_ns()
            work()
            each.append((time.perf_counter_ns() - began) / 1_000)
    return took


def percentiles(took: list[float]) -> dict[str, float]:
    ordered = sorted(took)
    return {"p50_us": round(ordered[len(ordered) // 2], 1), "p99_us": round(ordered[len(ordered) * 99 // 100], 1)}


def latency(primary: int, backup: int, rounds: int) -> dict[str, Any]:
    direct, carried = Client(primary, "direct"), Client(backup, "carried")
    times_us([direct.ask, carried.ask], rounds // 10)
    asked = times_us([direct.ask, carried.ask], rounds)
    published = times_us([direct.publish, carried.publish], rounds // 4)
    names = ("direct", "carried")
    return {
        "basic.get": dict(zip(names, map(percentiles, asked), strict=True)),
        "confirm": dict(zip(names, map(percentiles, published), strict=True)),
    }


def cpu_a_message(primary: int, backup: int, pids: dict[str, int], messages: int) -> dict[str, Any]:
    """Processor time of the primary and of the carrier for messages of 1 KB in bursts of 100, with their confirms."""
    clients = {"direct": Client(primary, "direct"), "carried": Client(backup, "carried")}
    spent: dict[str, dict[str, float]] = {name: dict.fromkeys(pids, 0.0) for name in clients}
    rounds = 10
    for _ in range(rounds):
        for name, client in clients.items():
            before = {role: cpu_seconds([pid]) for role, pid in pids.items()}
            for _ in range(messages // BURST // rounds):
                client.publish(BURST)
            for role, pid in pids.items():
                spent[name][role] += cpu_seconds([pid]) - before[role]
    return {
        name: {f"{role}_us": round(seconds * 1e6 / messages, 2) for role, seconds in each.items()}
        for name, each in spent.items()
    }


# -- many connections -------------------------------------------------------------------------------------------------


async def open_one(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    parser = FrameParser(FRAME_MAX)
    try:
        for said, answer in HANDSHAKE:
            writer.write(said)
            while True:
                data = await reader.read(65_536)
                if not data:
                    raise ConnectionError("closed")
                keys = [event[1] for event in parser.feed(data)]
                if answer in keys:
                    break
                if keys:
                    raise ConnectionError("refused")
    except BaseException:
        writer.close()
        raise
    return reader, writer


async def stay(port: int, opened: asyncio.Semaphore, log: list[tuple[str, float]], stop: asyncio.Event) -> None:
    """A client that connects again as soon as it is cut."""
    while not stop.is_set():
        try:
            reader, writer = await open_one(port)
        except OSError:
            log.append(("failed", time.monotonic()))
            await asyncio.sleep(0.1)
            continue
        log.append(("open", time.monotonic()))
        opened.release()
        while await reader.read(65_536):
            pass
        log.append(("cut", time.monotonic()))
        writer.close()


async def many(port: int, primary_pid: int, carrier_pid: int, count: int) -> dict[str, Any]:
    opened, stop = asyncio.Semaphore(0), asyncio.Event()
    log: list[tuple[str, float]] = []
    before_kb = rss_kb(carrier_pid)
    began = time.monotonic()
    clients = [asyncio.create_task(stay(port, opened, log, stop)) for _ in range(count)]
    for _ in range(count):
        await opened.acquire()
    took_s = time.monotonic() - began
    held_kb = rss_kb(carrier_pid) - before_kb
    cpu = cpu_seconds([carrier_pid])
    await asyncio.sleep(5)
    idle = (cpu_seconds([carrier_pid]) - cpu) / 5
    log.clear()
    killed = time.monotonic()
    os.kill(primary_pid, signal.SIGKILL)
    for _ in range(count):
        await opened.acquire()
    back = sorted(at - killed for what, at in log if what == "open")
    cuts = sorted(at - killed for what, at in log if what == "cut")
    stop.set()
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return {
        "connections": count,
        "opened_in_s": round(took_s, 2),
        "kb_each": round(held_kb / count, 1),
        "idle_cpu": round(idle, 4),
        "cut_median_s": round(statistics.median(cuts), 3),
        "cut_last_s": round(cuts[-1], 3),
        "back_median_s": round(statistics.median(back), 3),
        "back_last_s": round(back[-1], 3),
        "failed_attempts": sum(what == "failed" for what, _ in log),
    }


def rss_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench carry", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4_000, help="questions of each kind (4000)")
    parser.add_argument("--messages", type=int, default=50_000, help="messages each way for CPU a message (50000)")
    parser.add_argument("--connections", type=int, default=2_000, help="carried at once (2000)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="understudy-carry-") as folder:
        cluster = Understudy(Path(folder) / "cluster", Path(sys.executable).with_name("understudy"), 3)
        cluster.start()
        try:
            rows = cluster.brokers()
            primary = next(row for row in rows if row["role"] == "primary")
            backup = next(row for row in rows if row["role"] == "backup")
            pids = {"primary": primary["pid"], "carrier": backup["pid"]}
            found = {
                "latency": latency(primary["port"], backup["port"], options.rounds),
                "cpu": cpu_a_message(primary["port"], backup["port"], pids, options.messages),
                "many": asyncio.run(many(backup["port"], primary["pid"], backup["pid"], options.connections)),
            }
        finally:
            cluster.stop()
    print(json.dumps(found, indent=2))
    return 0
