"""A run of the outlet whose Kafka answers as a script says: what is not known is found out, and nothing is sent twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.observers.outlet.outlet_kit import ORDERS, JournalWriter
from understudy.broker.log.segment import JournalIdentity
from understudy.broker.server.files.file_storage import FileStorage
from understudy.observers.kafka_refused import KafkaRefusedError
from understudy.observers.outlet.edge import delivery as outlet_delivery
from understudy.observers.outlet.edge.delivery import OutletOptions
from understudy.observers.outlet.edge.run import OutletRun
from understudy.observers.outlet.errors import KafkaAwayError, OutletFencedError, RecordRefusedError
from understudy.observers.outlet.reading.groups import GroupLimits
from understudy.observers.outlet.reading.units import SentPosition
from understudy.observers.outlet.sending.records import KafkaRecord
from understudy.observers.outlet.sending.rules import OutletRule, OutletRules
from understudy.observers.outlet.sending.unsendable import ASIDE, SKIP, STOP, UnsendablePolicy


class ScriptedKafka:
    """Implements `outlet.edge.delivery.Sink`.

    Attributes:
        script: for each `send`, what happens: "" it is committed; "lost" it is, and nobody hears of it; "aborted" it is not;
            "taken" it is not, since another outlet has sent something; "slow" it is, after a while.
        batches: bodies of each transaction that was committed.
    """

    def __init__(self, *script: str) -> None:
        self.script = list(script)
        self.position: SentPosition | None = None
        self.batches: list[list[bytes]] = []
        self.opened = self.first_starts = 0
        self.too_large: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.several = True  # it refuses a batch first, without a word on the record
        self.sent: list[KafkaRecord] = []

    async def open(self) -> SentPosition | None:
        self.opened += 1
        return self.position

    async def read_position(self) -> SentPosition | None:
        return self.position

    def refuses(self, record: KafkaRecord) -> str:
        return "it is too large" if record.value in self.too_large else ""

    async def check_first_start(self) -> None:
        self.first_starts += 1

    def silence(self) -> str:
        return "Kafka is silent"

    async def send(self, records: Iterator[KafkaRecord], position: SentPosition) -> None:
        taken = list(records)
        for record in taken:
            if record.value in self.refused:
                several, self.several = self.several, False
                raise RecordRefusedError(f"Kafka refuses {record.value!r}", None if several else record.place)
        found = [record.value for record in taken]
        self.sent += taken
        step = self.script.pop(0) if self.script else ""
        if step == "slow":
            await asyncio.sleep(0.05)
            step = ""
        if step in ("", "lost"):
            self.position = position
            self.batches.append(found)
        if step == "taken":
            assert self.position is not None
            self.position = msgspec.structs.replace(self.position, session="other", broker="b9")
        if step:
            raise KafkaAwayError(f"Kafka: {step}")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "b1"
    storage = FileStorage(directory)
    journal = JournalWriter(storage)  # type: ignore[arg-type]  # the port is the same
    journal.declare()
    for at in range(1, 6):
        journal.transaction(at, at, b"a%d" % at, b"b%d" % at)
    journal.rest()
    storage.close()
    return directory


SAID: list[str] = []


def run(data: Path, kafka: ScriptedKafka, messages: int = 4, hold: str = "", **more: Any) -> OutletRun:
    SAID.clear()
    limits = GroupLimits(messages=messages)
    settings: dict[str, Any] = {"rules": OutletRules("g"), "limits": limits, "hold": hold}
    options = OutletOptions(**(settings | more))
    made = OutletRun(data, JournalIdentity("g", "b1"), kafka, options, SAID.append)
    try:
        asyncio.run(made.to_end())
    finally:
        made.close()
    return made


EVERY = [[], [b"a1", b"b1", b"a2", b"b2"], [b"a3", b"b3", b"a4", b"b4"], [b"a5", b"b5"]]


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet_delivery, "RETRY_S", 0.0)


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("step", ["lost", "aborted"])
def test_a_transaction_whose_end_is_not_known_is_found_out(data: Path, step: str, at: int) -> None:
    kafka = ScriptedKafka(*[""] * at, step)
    made = run(data, kafka)
    assert kafka.batches == EVERY
    assert (made.counts.transactions, made.counts.records) == (5, 10)
    assert kafka.opened == 2
    assert "tries again" in SAID[0]


def test_a_kafka_that_is_silent_is_told_of_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet_delivery, "SILENT_S", 0.001)
    kafka = ScriptedKafka("", "slow")
    made = run(data, kafka)
    assert kafka.batches == EVERY
    assert SAID == ["Kafka is silent; the outlet waits", "Kafka answers again"]
    assert made.state == "sending"


@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_outlet_that_finds_another_one_ends(data: Path, at: int) -> None:
    kafka = ScriptedKafka(*[""] * at, "taken")
    with pytest.raises(OutletFencedError, match=r"taken over \(broker 'b9'"):
        run(data, kafka)
    assert kafka.batches == EVERY[:at]
    assert kafka.opened == 1, "nobody was fenced"


@pytest.mark.parametrize("at", [1, 2, 3])
def test_the_next_one_goes_on_where_the_last_one_was_cut_off(data: Path, at: int) -> None:
    kafka = ScriptedKafka(*[""] * at, "taken")
    with pytest.raises(OutletFencedError):
        run(data, kafka)
    run(data, kafka)
    assert [batch for batch in kafka.batches if batch] == EVERY[1:]
    run(data, kafka)
    assert sum(map(len, kafka.batches)) == 10


def test_groups_have_their_positions(data: Path) -> None:
    kafka = ScriptedKafka()
    made = run(data, kafka, messages=2, hold="outlet")
    assert [batch for batch in kafka.batches if batch] == [[b"a%d" % at, b"b%d" % at] for at in range(1, 6)]
    assert (made.sent.csn, made.sent.reign, made.sent.founding, made.sent.broker) == (5, 1, "ab", "b1")
    assert made.sent.needed == made.sent.offset + 1
    assert json.loads((data / "outlet.hold").read_text()) == {"segment": 1}


# -- messages that cannot be sent -----------------------------------------------------------------------------------------

TOO_LONG = OutletRules("g", [OutletRule("*", "{vhost}" + "x" * 248)])


@pytest.mark.parametrize("how", ["too large", "refused by Kafka"])
@pytest.mark.parametrize("on", [ASIDE, SKIP, STOP])
def test_a_message_that_cannot_be_sent_stops_no_other(data: Path, how: str, on: str) -> None:
    kafka = ScriptedKafka()
    (kafka.too_large if how == "too large" else kafka.refused).add(b"b2")
    policy = UnsendablePolicy(on, "odd")
    if on == STOP:
        with pytest.raises(KafkaRefusedError, match=r"too large|Kafka refuses"):
            run(data, kafka, unsendable=policy)
        assert kafka.batches == [[]]
        return
    made = run(data, kafka, unsendable=policy)
    assert [(record.topic, record.value) for record in kafka.sent if record.topic == "odd"] == (
        [("odd", b"")] * (on == ASIDE)
    )
    assert [body for batch in kafka.batches for body in batch if body] == [
        body for batch in EVERY for body in batch if body != b"b2"
    ]
    assert (made.counts.unsendable, made.counts.records, made.counts.transactions) == (1, 9, 5)
    (said,) = [text for text in SAID if "cannot be sent" in text]
    assert ("goes to topic 'odd'" in said, "is left out" in said) == (on == ASIDE, on == SKIP)
    run(data, kafka, unsendable=policy)
    assert sum(map(len, kafka.batches)) == 9 + (on == ASIDE)


def test_what_goes_aside_says_where_it_was_and_why(data: Path) -> None:
    """A queue whose name makes no topic; all its messages go aside whole, in their transactions."""
    kafka = ScriptedKafka()
    made = run(data, kafka, rules=TOO_LONG, unsendable=UnsendablePolicy(ASIDE, "odd"))
    assert kafka.batches == EVERY
    assert made.counts.unsendable == 10
    headers = dict(kafka.sent[0].headers)
    assert kafka.sent[0].topic == "odd"
    assert b"a topic of Kafka has 1 to 249" in headers["understudy-unsendable"]
    assert headers["understudy-position"]
    assert len(SAID) == 1  # once a queue


@pytest.mark.parametrize("on", [ASIDE, SKIP, STOP])
def test_a_dead_letter_without_its_body_is_never_passed_over_in_silence(tmp_path: Path, on: str) -> None:
    storage = FileStorage(tmp_path / "b1")
    journal = JournalWriter(storage)  # type: ignore[arg-type]  # the port is the same
    journal.declare()
    at = journal.move(ORDERS, 1 << 40 | 7, 1 << 40 | 8, b"lost body", has_body=False)
    journal.move(ORDERS, 1 << 40 | 9, 1 << 40 | 10, b"whole")
    journal.rest()
    storage.close()
    kafka = ScriptedKafka()
    if on == STOP:
        with pytest.raises(
            KafkaRefusedError, match=f"position 1/{at}, for queue '//bills', cannot be sent: it is a dead"
        ):
            run(tmp_path / "b1", kafka, unsendable=UnsendablePolicy(on))
        return
    made = run(tmp_path / "b1", kafka, unsendable=UnsendablePolicy(on, "odd"))
    assert (made.counts.records, made.counts.unsendable) == (1, 1)
    assert [each.value for each in kafka.sent] == [b""] * (on == ASIDE) + [b"whole"]
    assert f"position 1/{at}, for queue '//bills', cannot be sent: it is a dead letter" in SAID[0]
    if on == ASIDE:
        headers = dict(kafka.sent[0].headers)
        assert headers["understudy-unsendable-bytes"] == b"9,2"
        assert b"does not repeat its body of 9 octets" in headers["understudy-unsendable"]
        assert headers["amqp-properties"]
        assert headers["understudy-position"] == b"1,%d" % at
    left_out = run(tmp_path / "b1", ScriptedKafka(), rules=OutletRules("g", [OutletRule("//bills", "")]))
    assert (left_out.counts.records, left_out.counts.unsendable) == (0, 0)


def test_a_message_that_cannot_even_go_aside_ends_the_outlet(data: Path) -> None:
    kafka = ScriptedKafka()
    kafka.too_large |= {b"b2", b""}
    with pytest.raises(KafkaRefusedError, match="topic 'odd' does not take it either"):
        run(data, kafka, unsendable=UnsendablePolicy(ASIDE, "odd"))


def test_without_a_position_the_topics_are_looked_at(data: Path) -> None:
    kafka = ScriptedKafka()
    run(data, kafka, begins_anew=True)
    assert kafka.first_starts == 0
    run(data, kafka)
    assert kafka.first_starts == 0  # there is a position
    again = ScriptedKafka()
    run(data, again)
    assert again.first_starts == 1
