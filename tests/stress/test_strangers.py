"""Strangers that come to a group at work are refused with a reason, and the group does not notice.

Starts that must be refused (a data directory that is locked, of another broker, of another group, of a newer format) are in
``tests/integration/test_bad_input.py``: for them a group is no different from one broker.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.broker_process import BrokerProcess, wait_until
from tests.integration.handshake import HANDSHAKE, frame, method
from tests.integration.test_bad_input import REFUSED, refused
from tests.stress.clients import Finder, connect_to, declare, in_threads
from tests.stress.group import WAIT_S, Group, running_group
from tests.stress.load import undisturbed
from tests.stress.strangers import FakeBackup, fake_backup, mutations, run_away, shout, store_of_another_group, stranger
from understudy.broker.errors import UnderstudyError
from understudy.replicator import wire
from understudy.replicator.direct.framing import HEAD, MESSAGE, frame_head

pytestmark = [pytest.mark.stress, pytest.mark.timeout(240)]

STALLED = "no progress for"
"""Why the primary ends the link of a joiner that is silent for `backup_timeout_s`, 5 s."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with running_group(tmp_path_factory.mktemp("strangers")) as running:
        yield running


# -- brokers --------------------------------------------------------------------------------------------------------------


def blockers(broker: BrokerProcess) -> str:
    return "; ".join(broker.status().get("blockers", [])) if broker.ports else ""


def test_a_broker_with_a_wrong_secret(group: Group, tmp_path: Path) -> None:
    with undisturbed(group, "secret"), stranger(tmp_path / "b9", secret="not ours", store=group.store) as broker:
        wait_until("it is refused", lambda: "secret" in blockers(broker), WAIT_S)
        assert (broker.status()["role"], broker.page("/readyz")[0]) == ("backup", 503)
        wait_until("the primary says so too", lambda: "link.secret" in group.primary().log_text(), WAIT_S)
        # The secrets themselves are shown to nobody.
        for text in (broker.log_text(), group.logs(), blockers(broker)):
            assert "not ours" not in text
            assert group.secret not in text


def test_a_broker_of_another_group(group: Group, tmp_path: Path) -> None:
    """The broker knows the secret, and believes that the address of its primary is that of ours."""
    store = tmp_path / "their.db"
    store_of_another_group(group.store, store, "theirs")
    with (
        undisturbed(group, "theirs"),
        stranger(tmp_path / "b9", secret=group.secret, store=store, group="theirs") as broker,
    ):
        wait_until("it is refused", lambda: "group differs" in blockers(broker), WAIT_S)
        assert "'theirs'" in blockers(broker)
        assert "'understudy'" in blockers(broker)
        assert broker.page("/readyz")[0] == 503
        wait_until("the primary says so too", lambda: "group differs" in group.primary().log_text(), WAIT_S)


def test_a_link_of_a_broker_to_itself(group: Group) -> None:
    """An id belongs to one broker: two ends that both have it find out when they have proved that they share the secret."""
    primary = group.primary()
    with (
        undisturbed(group, "twin"),
        fake_backup(primary.ports["link"], group.secret, broker=primary.name) as fake,
    ):
        fake.until_gone()
        assert "both ends are broker" in fake.session.reason
        wait_until("the primary says so too", lambda: "both ends are broker" in primary.log_text(), WAIT_S)


def test_a_store_that_has_forgotten_the_group(group: Group) -> None:
    """A journal with an epoch, a store without: no second group is founded; what repairs it is named."""
    broker = group.backups()[0]
    assert broker.stop() == 0
    config = broker.config.read_text()
    assert '"coordination.db"' in config
    try:
        broker.config.write_text(config.replace('"coordination.db"', '"empty.db"'))
        line = refused(broker, REFUSED)
        assert "understudy promote --unclean" in line
        assert "epoch" in line
    finally:
        broker.config.write_text(config)
    group.start(broker.name)
    group.ready()
    group.agree()


# -- bytes at the AMQP ports ----------------------------------------------------------------------------------------------


PUBLISH = (
    method(1, struct.pack(">HHH", 60, 40, 0) + b"\0\7garbage\0")
    + frame(2, 1, struct.pack(">HHQH", 60, 0, 5, 0x1000) + b"\2")
    + frame(3, 1, b"hello")
)
BEGINNING = HANDSHAKE + method(1, struct.pack(">HH", 90, 10))
COMMITTED = BEGINNING + 3 * PUBLISH + method(1, struct.pack(">HH", 90, 20))
SCRIPT = COMMITTED + PUBLISH
OVERSIZED = [
    struct.pack(">BHI", 1, 1, 0x7FFFFFFF),
    struct.pack(">BHI", 3, 1, 0xFFFFFFFF),
    struct.pack(">BHI", 3, 1, 131_073) + bytes(131_073) + b"\xce",
    PUBLISH[:-13] + frame(2, 1, struct.pack(">HHQH", 60, 0, 1 << 62, 0)) + frame(3, 1, bytes(100_000)),
]


def test_garbage_at_the_amqp_ports(group: Group) -> None:
    """Random, oversized and mutated frames, to primary and backups, in transactions too."""
    chance = random.Random(5)
    declare(Finder(group.ports), ["garbage"])
    with undisturbed(group, "amqp"):
        for port in group.ports:
            for length in (0, 1, 7, 8, 100, 70_000):
                shout(port, chance.randbytes(length))
                shout(port, HANDSHAKE + chance.randbytes(length))
            for data in OVERSIZED:
                shout(port, data)
                shout(port, HANDSHAKE + data)
        in_threads([lambda s=seed: shout_mutations(group.primary().port, s) for seed in range(5)])  # type: ignore[misc]


def shout_mutations(port: int, seed: int) -> None:
    for data in mutations(SCRIPT, 30, seed=seed):
        shout(port, data)


def test_a_transaction_that_breaks_off_anywhere(group: Group) -> None:
    """The connection ends after each possible byte: three messages if tx.commit has arrived, else none."""
    port = group.primary().port
    declare(Finder(group.ports), ["garbage"])
    connection = connect_to(port)
    connection.channel().queue_purge("garbage")
    connection.close()
    lengths = range(len(BEGINNING), len(SCRIPT) + 1)
    with undisturbed(group, "amqp-cut"):
        for length in lengths:
            shout(port, SCRIPT[:length])
    there, _ = group.agree(["garbage"])["garbage"]
    assert there == 3 * sum(length >= len(COMMITTED) for length in lengths)
    # Who does not stay for the answer may lose what he sent, but only all of it.
    with undisturbed(group, "amqp-gone"):
        for length in lengths[::5]:
            run_away(port, SCRIPT[:length])
    more = group.agree(["garbage"])["garbage"][0] - there
    assert more in range(0, 3 * sum(length >= len(COMMITTED) for length in lengths[::5]) + 1, 3)


# -- bytes at the link ports ----------------------------------------------------------------------------------------------


def test_garbage_at_the_link_ports(group: Group) -> None:
    """From whoever has proved nothing: before a HELLO, instead of one, after one."""
    chance = random.Random(8)
    with fake_backup(group.primary().ports["link"], group.secret) as fake:
        hello = fake.hello
    with undisturbed(group, "link"):
        for seed, broker in enumerate(group.running()):
            port = broker.ports["link"]
            for length in (0, 1, 8, 9, 100, 70_000):
                shout(port, chance.randbytes(length))
                shout(port, hello + chance.randbytes(length))
            for kind in range(12):
                shout(port, frame_head(kind, b""))
                shout(port, hello + frame_head(kind, b"x" * 32) + b"x" * 32)
                shout(port, HEAD.pack(0xFFFFFFFF, 0, kind))
                shout(port, hello + HEAD.pack(64 << 20, 0, kind) + bytes(1000))
            for length in range(0, len(hello), 7):
                run_away(port, hello[:length])
            for data in mutations(hello, 30, seed=seed):
                shout(port, data)


@contextlib.contextmanager
def conversation(group: Group, *messages: bytes) -> Iterator[FakeBackup]:
    """These are said to the primary, on a link of our own."""
    with fake_backup(group.primary().ports["link"], group.secret) as fake:
        fake.open()
        for message in messages:
            fake.say(message)
        yield fake


def sync(epoch: int, starts: tuple[tuple[int, int], ...] = ()) -> bytes:
    """An honest beginning, of a broker that has to be caught up.

    Its epoch is true: a higher one would rightly depose the primary.
    """
    return wire.encode_sync(
        wire.Sync(epoch_seen=epoch, log_start=0, end=0, starts=starts, fresh=True, part=True, no_votes=((1, 2),))
    )


def ids(payload: bytes) -> bytes:
    return bytes((wire.IDS,)) + payload


def is_understood(message: bytes) -> bool:
    """True if a SYNC that is cut off here is one of an older broker, which says less."""
    with contextlib.suppress(
        UnderstudyError, struct.error, ValueError, IndexError, OverflowError
    ):  # as `HaBroker` has it
        wire.decode_sync(message)
        return True
    return False


def cut_off(epoch: int) -> list[bytes]:
    """A SYNC that ends too early, in many places."""
    whole = sync(epoch, starts=((1, 1),))
    return [whole[:length] for length in range(1, len(whole), 3)]


def nonsense(epoch: int) -> Iterator[list[bytes]]:
    """Messages of which the last cannot be understood."""
    yield [b""]
    for message in cut_off(epoch):
        if not is_understood(message):
            yield [message]
    for kind in (0, wire.RESUME, wire.BATCH, wire.STABLE, wire.STATUS, 77, 255):  # not for a primary
        yield [sync(epoch), bytes((kind,))]
    for message in (
        wire.encode_ack(1 << 60),
        wire.encode_ack(0)[:4],
        wire.encode_piece_ack(7)[:3],
        wire.encode_no(1, 2, "no reason")[:12],
        ids(b""),
        ids(struct.pack(">I", 0xFFFFFFFF)),
        ids(struct.pack(">IQI", 1, 5, 0xFFFFFFFF) + bytes(64)),
    ):
        yield [sync(epoch), message]


def hazards(epoch: int) -> Iterator[list[bytes]]:
    """Messages made by chance: some have a meaning."""
    chance = random.Random(9)
    whole = sync(epoch, starts=((1, 1),))
    for message in cut_off(epoch):
        if is_understood(message):
            yield [message]
    for _ in range(60):
        mutated = bytearray(whole)
        for _ in range(3):
            mutated[chance.randrange(5, len(mutated))] = chance.randrange(256)
        yield [bytes(mutated)]
    for kind in range(2, 18):
        for length in (8, 24, 200):
            message = bytes((kind,)) + chance.randbytes(length)
            yield [sync(epoch), message]
            yield [sync(epoch), ids(struct.pack(">I", 0)), message]


def test_nonsense_from_a_peer_that_knows_the_secret(group: Group) -> None:
    """Unintelligible messages end their link, with a reason, and nothing else."""
    epoch = group.primary().row()["epoch"]
    with undisturbed(group, "sense"):
        for messages in nonsense(epoch):
            with conversation(group, *messages) as fake:
                reason = fake.until_gone()
            assert reason, f"no reason is given for the end after {messages}"
            assert STALLED not in reason, f"{messages} are understood: {reason}"
        with conversation(group, sync(epoch)) as fake:  # who begins well, and says no more
            assert STALLED in fake.until_gone()
        for messages in hazards(epoch):
            with conversation(group, *messages) as fake:
                fake.break_off()
        for data in (
            HEAD.pack(0xFFFFFFFF, 0, MESSAGE),
            HEAD.pack(1 << 30, 0, MESSAGE) + bytes(100_000),
            frame_head(MESSAGE, b"x" * 100) + b"x" * 50,
            frame_head(1, b"{}") + b"{}",
            b"GET / HTTP/1.0\r\n\r\n",
        ):
            with conversation(group) as fake:
                fake.raw(data)
                fake.break_off()
