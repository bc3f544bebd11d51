"""The rows of the table: which load, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from attrs import evolve, frozen

from bench_tools.errors import BenchError

QUEUE_PREFIX = "bench"
DEAD_LETTERS = "bench-dead"
PINNED_PREFIX = "bench-pinned"
MESSAGE_BYTES = 1024


@frozen(kw_only=True)
class Row:
    """One kind of load.

    ``messages`` is per transaction (``tx`` only), ``window`` the publishes without confirm per connection (``confirm`` and
    ``flow``).  ``flow`` publishes and consumes at once; ``rpc``: requests and replies.
    ``consumers`` is the number of consuming connections (PerfTest) or, for txgen, whether a transaction also acknowledges what it
    was delivered.  ``every_ms`` is the time between the begins of two transactions of a connection (``tx`` of txgen only); 0: the
    next begins when the last is answered.  ``rate`` is what all producers publish in a second together (PerfTest and ``flow``);
    0: as fast as they can.  ``seconds`` is measured at least.
    ``delay_ms``: so much later each packet between brokers comes (``--link-delay``), None: the links are ordinary.
    ``pinned``: a queue beside the others holds old messages, so that brokers compact their journals while the load runs.
    ``max_length`` is each queue's limit (0: none), which is reached before the window opens; ``dead_letters``: one more
    queue gets what has no room.
    """

    name: str
    tool: Literal["txgen", "perftest"]
    mode: Literal["tx", "confirm", "flow", "rpc"]
    connections: int
    queues: int
    messages: int = 1
    window: int = 0
    consumers: int = 0
    every_ms: int = 0
    rate: int = 0
    seconds: float = 0.0
    max_length: int = 0
    dead_letters: bool = False
    delay_ms: float | None = None
    pinned: bool = False

    @property
    def declared(self) -> list[str]:
        """Options of txgen that say which arguments the queues have."""
        limit = ["--max-length", str(self.max_length)] if self.max_length else []
        return limit + (["--dead-letters", DEAD_LETTERS] if self.dead_letters else [])

    @property
    def has_goal(self) -> bool:
        """True if this row has the goal of twice RabbitMQ's rate at half its CPU."""
        return self.tool == "txgen" and self.mode == "tx"


def _tx(connections: int, messages: int) -> Row:
    return Row(
        name=f"tx-{connections}x{messages}",
        tool="txgen",
        mode="tx",
        connections=connections,
        queues=4,
        messages=messages,
    )


def _at_rate(rate: int) -> Row:
    """One producer and one consumer on one queue, well below what they could do: the latency is that of an unloaded broker."""
    return Row(
        name=f"java-rate-{rate}",
        tool="perftest",
        mode="confirm",
        connections=1,
        queues=1,
        window=1000,
        consumers=1,
        rate=rate,
    )


def _flow(name: str, rate: int = 0) -> Row:
    """Eight connections that publish to four queues, and eight that consume them."""
    return Row(name=name, tool="txgen", mode="flow", connections=8, queues=4, window=1000, rate=rate)


def _rpc(requesters: int) -> Row:
    """Requests to four queues (one for a single requester); each requester has a queue for replies."""
    return Row(
        name=f"rpc-{requesters}",
        tool="txgen",
        mode="rpc",
        connections=requesters,
        queues=requesters + min(4, requesters),
    )


DEFAULT_ROWS = (
    _tx(1, 1),
    _tx(1, 10),
    _tx(8, 1),
    _tx(8, 10),
    _tx(32, 1),
    _tx(32, 10),
    Row(name="confirm-8", tool="txgen", mode="confirm", connections=8, queues=4, window=1000),
    Row(name="java-tx-8x10", tool="perftest", mode="tx", connections=8, queues=1, messages=10),
    Row(name="java-confirm-8", tool="perftest", mode="confirm", connections=8, queues=1, window=1000),
    Row(name="java-flow", tool="perftest", mode="confirm", connections=1, queues=1, window=1000, consumers=1),
)

DEEP_SECONDS = 45.0
"""Long enough for a million messages at 22,000 a second."""

PINNED_SECONDS = 30.0
"""Long enough for several compactions of each journal."""

_TXACK = Row(name="txack-32x10", tool="txgen", mode="tx", connections=32, queues=4, messages=10, consumers=1)

EXTRA_ROWS = (
    evolve(_tx(32, 10), name="tx-32x10-deep", seconds=DEEP_SECONDS),
    evolve(_tx(8, 1), name="tx-8x1-slow", every_ms=100),
    Row(name="full-8", tool="txgen", mode="confirm", connections=8, queues=4, window=1000, max_length=1000),
    Row(
        name="full-dead-8",
        tool="txgen",
        mode="confirm",
        connections=8,
        queues=4,
        window=1000,
        max_length=1000,
        dead_letters=True,
    ),
    _flow("flow-8"),
    _flow("rate-1000", 1_000),
    _flow("rate-10000", 10_000),
    _rpc(1),
    _rpc(8),
    _rpc(32),
    _rpc(128),
    Row(name="java-flow-8", tool="perftest", mode="confirm", connections=8, queues=1, window=1000, consumers=8),
    _at_rate(1_000),
    _at_rate(10_000),
    Row(name="txack-8x1", tool="txgen", mode="tx", connections=8, queues=4, messages=1, consumers=1),
    Row(name="txack-8x10", tool="txgen", mode="tx", connections=8, queues=4, messages=10, consumers=1),
    _TXACK,
    evolve(_TXACK, name="txack-32x10-pinned", seconds=PINNED_SECONDS, pinned=True),
)


def select_rows(text: str | None) -> Sequence[Row]:
    """Rows by comma-separated names; a name that ends in ``*`` stands for all that begin so.

    Raises:
        BenchError: a name that no row has.
    """
    if text is None:
        return DEFAULT_ROWS
    chosen: list[Row] = []
    for name in text.split(","):
        found = [
            row
            for row in DEFAULT_ROWS + EXTRA_ROWS
            if row.name == name or (name.endswith("*") and row.name.startswith(name[:-1]))
        ]
        if not found:
            known = ", ".join(row.name for row in DEFAULT_ROWS + EXTRA_ROWS)
            raise BenchError(f"no row is called {name!r}; there are: {known}")
        chosen += [row for row in found if row not in chosen]
    return chosen


def at_delays(rows: Sequence[Row], delays_ms: Sequence[float]) -> list[Row]:
    """Each row once for each delay of the links between brokers."""
    return [evolve(row, name=f"{row.name}+{delay:g}ms", delay_ms=delay) for row in rows for delay in delays_ms]
