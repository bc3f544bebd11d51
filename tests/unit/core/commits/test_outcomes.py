"""Answers to a client that asks what became of a transaction, early and late (G8)."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.core_kit import FRAME_MAX, Client, Core
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import BASIC_GET, TX_COMMIT, TX_ROLLBACK, TX_SELECT, encode_method
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.life.meta import Meta
from understudy.broker.core.limits import Limits
from understudy.broker.transactions import forgotten_names
from understudy.broker.transactions.forgotten_names import ForgottenNames
from understudy.broker.transactions.outcomes import Outcome, Outcomes

HOUR_MS = 3_600_000


def publish_named(client: Client, name: str | bytes, verb: int) -> None:
    """A transaction of one message under ``name``, and its end."""
    properties = encode_properties(delivery_mode=2, headers={"x-understudy-tx": name})
    client.send(publish_frames(1, "", "q", properties, b"x", FRAME_MAX))
    client.method(verb)
    client.core.sync()
    client.heard()


def ask(core: Core, subject: str | bytes) -> str:
    if isinstance(subject, str):
        subject = subject.encode()
    client = core.client()
    core.queue(client, "answers")
    properties = encode_properties(reply_to="answers")
    client.send(publish_frames(1, "understudy.tx", "", properties, b"outcome " + subject, FRAME_MAX))
    core.sync()
    core.sync()
    client.method(BASIC_GET, "answers", True)
    core.sync()
    (event,) = client.events()
    assert len(event) == 5, "a method with content"
    return bytes(event[4]).decode()


def test_an_outcome_that_was_forgotten_is_expired_and_not_rolled_back() -> None:
    core = Core(Limits(outcome_ttl_ms=HOUR_MS))
    client = core.client()
    core.queue(client, "q")
    client.method(TX_SELECT)
    client.heard()
    publish_named(client, "paid", TX_COMMIT)
    publish_named(client, "given-up", TX_ROLLBACK)
    assert [ask(core, name) for name in ("paid", "given-up", "never-heard-of")] == [
        "committed",
        "rolled back",
        "rolled back",
    ]
    for hours in range(4):
        core.broker.tick(hours * HOUR_MS + 60_000, 1_700_000_000_000)
        core.sync()
    assert core.node.state.applying.outcomes.named("paid") is None
    assert ask(core, "paid") == "expired"
    assert [ask(core, name) for name in ("given-up", "never-heard-of", "new")] == ["rolled back"] * 3
    restored, _ = Meta.decode(Meta.of(core.node.state).encode())
    assert "paid" in restored.outcomes.forgotten


@pytest.mark.parametrize("sequence", [1 << 40, (1 << 40) + 1, (1 << 40) - 1, 1 << 150])
def test_an_id_that_nobody_gave_out_is_not_taken_for_another(sequence: int) -> None:
    """Also one that does not fit into an id: cut to fit, it would be answered as another's."""
    core = Core()
    core.queue(core.client(), "q")
    for epoch in (1, core.broker.role.epoch, 99_999):
        assert ask(core, f"{epoch}.{sequence}") == f"error: transaction {epoch}.{sequence} was never opened"


@pytest.mark.parametrize("name", [bytes(range(0xF0, 0x100)), b" padded ", b"two words", b"line\n", "größe".encode()])
def test_a_name_is_its_octets(name: bytes) -> None:
    """A UUID as it is, say. One that is no UTF-8 was asked for under another name, and ended every broker when it was forgotten."""
    core = Core(Limits(outcome_ttl_ms=HOUR_MS))
    client = core.client()
    core.queue(client, "q")
    client.method(TX_SELECT)
    client.heard()
    publish_named(client, name, TX_COMMIT)
    assert ask(core, name) == "committed"
    for hours in range(4):
        core.broker.tick(hours * HOUR_MS + 60_000, 1_700_000_000_000)
        core.sync()
    assert ask(core, name) == "expired"


def test_a_forgotten_name_may_be_used_anew() -> None:
    core = Core(Limits(outcome_ttl_ms=HOUR_MS))
    client = core.client()
    core.queue(client, "q")
    client.method(TX_SELECT)
    client.heard()
    publish_named(client, "nightly", TX_COMMIT)
    for hours in range(4):
        core.broker.tick(hours * HOUR_MS + 60_000, 1_700_000_000_000)
        core.sync()
    assert ask(core, "nightly") == "expired"
    publish_named(client, "nightly", TX_COMMIT)
    assert ask(core, "nightly") == "committed"


def test_a_name_may_be_used_for_the_first_time_when_its_bar_has_expired() -> None:
    """By a transaction that began after that (docs/configuration.md, Names of transactions)."""
    core = Core(Limits(outcome_ttl_ms=HOUR_MS))
    client = core.client()
    core.queue(client, "q")
    client.method(TX_SELECT)
    assert ask(core, "nightly") == "rolled back"
    for hours in range(4):
        core.broker.tick(hours * HOUR_MS + 60_000, 1_700_000_000_000)
        core.sync()
    publish_named(client, "nightly", TX_COMMIT)
    assert ask(core, "nightly") == "committed"


@pytest.mark.parametrize("end", ["commit", "rollback", "lost"])
def test_a_name_is_that_of_the_transaction_that_commits_under_it(end: str) -> None:
    """Another in the turn of its commit used to take it: who asked was told "rolled back" of what had committed."""
    core = Core()
    first, second = core.client(), core.client()
    core.queue(first, "q")
    named = publish_frames(
        1, "", "q", encode_properties(delivery_mode=2, headers={"x-understudy-tx": "job"}), b"x", FRAME_MAX
    )
    for client in (first, second):
        client.method(TX_SELECT)
    first.connection.receive(named + encode_method(1, TX_COMMIT))
    second.connection.receive(named)
    if end == "lost":
        second.connection.lost("test")
    else:
        second.connection.receive(encode_method(1, TX_COMMIT if end == "commit" else TX_ROLLBACK))
    core.sync()
    core.sync()
    assert first.heard() == ["tx.select-ok", "tx.commit-ok"]
    told = {
        "commit": ["tx.select-ok", "channel.close"],
        "rollback": ["tx.select-ok", "tx.rollback-ok"],
        "lost": ["tx.select-ok"],
    }
    assert second.heard() == told[end]
    assert ask(core, "job") == "committed"
    assert core.node.state.topology.registry.vhost("/").queues["q"].depth == 1


@settings(max_examples=30, deadline=None)
@given(st.sets(st.text(min_size=1, max_size=64), max_size=300), st.sets(st.text(min_size=1, max_size=64), max_size=50))
def test_no_forgotten_name_is_denied(names: set[str], later: set[str]) -> None:
    """Neither by the set, nor by its copy, nor by what two sets of one log make together."""
    one, other = ForgottenNames(), ForgottenNames()
    for name in names:
        one.add(name)
    for name in later:
        other.add(name)
    copy, end = ForgottenNames.decode(b"???" + one.encode(), 3)
    assert end == 3 + len(one.encode())
    copy.merge(other)
    assert all(name in copy for name in names | later)


def test_few_names_are_claimed_that_were_not_given() -> None:
    found = ForgottenNames()
    for number in range(50_000):
        found.add(f"order-{number}")
    assert all(f"order-{number}" in found for number in range(0, 50_000, 97))
    claimed = sum(f"invoice-{number}" in found for number in range(20_000))
    assert claimed < 200, "one in a hundred; one in a thousand is expected"
    assert len(found.encode()) < 300_000


@pytest.mark.parametrize("names", [0, 3_000, 24_000, 48_000, 120_000])
def test_a_set_that_is_full_claims_more_names_and_says_how_many(monkeypatch: pytest.MonkeyPatch, names: int) -> None:
    """Two filters of the ten, for about 24,000 names: none that was given is ever denied, and its size stays."""
    monkeypatch.setattr(forgotten_names, "_LAYERS", 2)
    found = ForgottenNames()
    for number in range(names):
        found.add(f"order-{number}")
    assert all(f"order-{number}" in found for number in range(0, names, 97))
    assert len(found) == names
    claimed = sum(f"invoice-{number}" in found for number in range(20_000)) / 20_000
    assert found.mistaken == pytest.approx(claimed, rel=0.15, abs=0.002)
    assert found.mistaken < 0.002 or names > 24_000
    assert found.mistaken > 0.5 or names < 120_000
    assert len(found.encode()) < 50_000


def test_trimming_forgets_by_offset_and_keeps_what_is_younger() -> None:
    outcomes = Outcomes()
    outcomes.committed(1, "old", 10)
    outcomes.rolled_back(2, "old-no", 11)
    outcomes.committed(3, "young", 12)
    outcomes.trim(11, 1)
    assert outcomes.named("young") is Outcome.COMMITTED
    assert [name in outcomes.forgotten for name in ("old", "old-no", "young")] == [True, False, False]
    assert outcomes.of_id(1, 3) is Outcome.EXPIRED
    assert outcomes.of_id(3, 3) is Outcome.COMMITTED


@given(st.lists(st.tuples(st.sampled_from("cbtT"), st.integers(0, 30)), max_size=60))
def test_what_is_kept_of_the_bytes_is_what_the_table_says(steps: list[tuple[str, int]]) -> None:
    """Encoded again and again between commits, barred names and trims, as checkpoints do."""
    outcomes = Outcomes()
    plain: dict[str, tuple[Outcome, int]] = {}
    for offset, (step, number) in enumerate(steps, 1):
        if step == "c":
            outcomes.committed(offset, f"name-{number}" if number < 20 else "", offset)
            if number < 20:
                plain.setdefault(f"name-{number}", (Outcome.COMMITTED, offset))
        elif step == "b":
            outcomes.rolled_back(0, f"name-{number}", offset)
            plain.setdefault(f"name-{number}", (Outcome.ROLLED_BACK, offset))
        else:
            due = outcomes.trim_point(number, len(outcomes) if step == "t" else 5)
            if due is not None:
                outcomes.trim(*due)
                plain = {name: found for name, found in plain.items() if found[1] > due[0]}
        if number % 3:
            encoded = outcomes.encode()
            again, end = Outcomes.decode(encoded)
            assert end == len(encoded)
            assert again.encode() == encoded
            assert len(again) == len(outcomes)
            assert all(again.decided_at(each) == outcomes.decided_at(each) for each in range(61))
    assert {name: outcomes.named(name) for name in plain} == {name: found[0] for name, found in plain.items()}
    assert len(Outcomes.decode(outcomes.encode())[0]) == len(outcomes)


@pytest.mark.parametrize("named", [False, True])
def test_a_checkpoint_encodes_nothing_that_is_known(named: bool) -> None:
    """All brokers of a group begin a segment at the same place of the log: what takes long there holds up every commit."""
    outcomes = Outcomes()
    for tx_id in range(1, 2_001):
        outcomes.committed(tx_id, f"name-{tx_id}" if named else "", tx_id)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        encoded = outcomes.encode()
    finally:
        sys.setprofile(None)
    assert len(encoded) > 2_000 * 16
    assert calls < 50
