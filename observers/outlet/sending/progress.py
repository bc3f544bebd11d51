"""OutletProgress: what an outlet tells its broker each second, as a line of JSON, and the metrics that the broker makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from understudy.broker.plugin_api.metrics import Family, Kind, labelled, one

STARTING: Final = "starting"
SENDING: Final = "sending"
WAITING: Final = "waiting"
STANDING_BY: Final = "standing by"
DOWN: Final = "down"
STATES: Final = (STARTING, SENDING, WAITING, STANDING_BY, DOWN)
"""It looks for its position; it sends what there is; Kafka is away; its broker does not lead; no process runs."""


class OutletProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Of one process at one moment; counts are from its start.

    Attributes:
        state: one of `STATES`, but `DOWN`.
        transactions, plain_messages, records, kafka_transactions, unsendable: `OutletCounts`.
        lag_transactions, lag_bytes: behind the position; -1: not known, or standing by.
        rests_s: seconds since the position in Kafka moved; -1: it has not yet.
    """

    state: str
    transactions: int = 0
    plain_messages: int = 0
    records: int = 0
    kafka_transactions: int = 0
    unsendable: int = 0
    lag_transactions: int = -1
    lag_bytes: int = -1
    rests_s: float = -1.0


COUNTS: Final = ("transactions", "plain_messages", "records", "kafka_transactions", "unsendable")


class OutletTotals:
    """Counts over all processes of one broker's life.

    Attributes:
        last: what the present process has told last; None: nothing yet, or no process runs.
    """

    def __init__(self) -> None:
        self._ended = dict.fromkeys(COUNTS, 0)
        self.last: OutletProgress | None = None

    def heard(self, line: bytes) -> None:
        """A line of the process. What is none is passed over: the process is a newer program, for example."""
        try:
            self.last = msgspec.json.decode(line, type=OutletProgress)
        except msgspec.MsgspecError:
            return

    def ended(self) -> None:
        """The process has ended; the next one counts from 0."""
        for name in COUNTS:
            self._ended[name] += getattr(self.last, name, 0)
        self.last = None

    def count(self, name: str) -> int:
        """One of `COUNTS`."""
        return self._ended[name] + int(getattr(self.last, name, 0))


def outlet_families(totals: OutletTotals, ends: Mapping[int, int], fenced_code: int) -> Iterable[Family]:
    """For ``/metrics``.

    Args:
        totals: of the broker's outlets.
        ends: how often a process has ended by itself, by exit code.
        fenced_code: the exit code of an outlet that another one has replaced.
    """
    last = totals.last
    state = last.state if last is not None else DOWN
    yield labelled(
        "gauge",
        "understudy_outlet_state",
        "1 for the state that it has.",
        ("state",),
        (((each,), each == state) for each in STATES),
    )
    counter: Kind = "counter"
    yield one(counter, "understudy_outlet_transactions_total", "Transactions sent.", totals.count("transactions"))
    yield one(
        counter,
        "understudy_outlet_plain_messages_total",
        "Messages sent that were published outside of transactions.",
        totals.count("plain_messages"),
    )
    yield one(counter, "understudy_outlet_records_total", "Kafka records sent.", totals.count("records"))
    yield one(
        counter,
        "understudy_outlet_kafka_transactions_total",
        "Kafka transactions committed.",
        totals.count("kafka_transactions"),
    )
    yield one(
        counter,
        "understudy_outlet_unsendable_total",
        "Messages that could not be sent, and went aside or were left out.",
        totals.count("unsendable"),
    )
    yield one(
        counter,
        "understudy_outlet_fenced_total",
        "Outlets that ended since another one of the group sends.",
        ends.get(fenced_code, 0),
    )
    yield one(
        counter,
        "understudy_outlet_failures_total",
        "Outlets that ended by themselves for another reason.",
        sum(ends.values()) - ends.get(fenced_code, 0),
    )
    if last is not None and last.lag_transactions >= 0:
        yield one("gauge", "understudy_outlet_lag_transactions", "Transactions not sent yet.", last.lag_transactions)
        yield one("gauge", "understudy_outlet_lag_bytes", "Octets of log not sent yet.", last.lag_bytes)
    if last is not None and last.rests_s >= 0:
        yield one("gauge", "understudy_outlet_rests_seconds", "Since the position in Kafka moved last.", last.rests_s)
