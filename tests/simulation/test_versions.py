"""Groups whose brokers run different versions of the program (DESIGN 12): mixed ones work, and what cannot be read is refused.

The newer version is made up (``release.NEXT``): wire versions 1 to 3, record formats 1 to 7, and with format 7 a kind of record
that the program of this tree, which reads 1 to 6, does not know.
"""

from __future__ import annotations

import attrs
import pytest

from tests.simulation.versions_kit import refusals, run, written
from tests.simulator.operator import command
from tests.simulator.release import AFTER_NEXT, FUTURE_KIND, NEXT, THIS, future_record
from tests.simulator.scenario import NEVER_MS, Hand, Scenario, SimNode, calls, named, scenario
from understudy.broker.core.life.meta import Meta
from understudy.broker.log import record
from understudy.replicator import snapshot, wire

A_WHILE_MS = 20_000
TRIES = 20
"""A broker that is turned away waits up to 2 s before it tries again: about 10 times in a while, after a few quick ones."""


@pytest.fixture(autouse=True)
def _the_next_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a newer program. ``record.FORMAT_VERSION`` stays: it is that of the program which is tested."""
    for formats in (7, 8):
        monkeypatch.setitem(record.NEWEST_KINDS, formats, FUTURE_KIND)
    monkeypatch.setitem(record.KIND_NAMES, FUTURE_KIND, "future")


def write_future(group: Scenario, number: int = 0) -> int:
    """The primary writes a record of format 7; its offset."""
    node = group.primary

    def write() -> None:
        node.node.broker.batch.append_record(future_record(number))

    node.run(write)
    return node.node.state.log.end


def opened(group: Scenario, name: str) -> Hand:
    """A transaction with a message for each of two queues."""
    hand = group.hand(transactional=True)
    hand.publish("a", name.encode(), properties=named(name))
    hand.publish("b", name.encode(), properties=named(name))
    return hand


def wire_versions(group: Scenario) -> dict[frozenset[str], int]:
    return {frozenset(end.owner.name for end in pair.ends): pair.wire_version for pair in group.cluster.network.pairs}


def test_a_rolling_upgrade() -> None:
    """Backups first, then the primary hands over; transactions are open all the time; nothing is lost."""
    with scenario() as group:
        hand = group.hand()
        for queue in ("a", "b"):
            hand(calls.declare, queue)
        done: list[bytes] = []
        first = group.primary
        for number, backup in enumerate(group.backups):
            spanning, name = opened(group, f"tx {number}"), f"tx {number}"
            run(group, backup, NEXT)
            spanning.publish("a", b"while it is away")
            group.ready()
            assert group.primary is first
            assert written(first) == 6
            spanning.committed(name)
            done += [name.encode(), b"while it is away"]
            group.everywhere("a", *done)
        left_open = opened(group, "left open")
        second = group.backups[0]
        group.replace_primary(second, hard=False)
        group.until("it is active", lambda: group.cluster.primary() is second)
        lost = left_open.begin(calls.qos, 0)
        group.until("who had left it open has lost its connection", lambda: lost.over)
        assert lost.lost
        assert group.fate("left open") == "rolled back"
        last = opened(group, "last")
        run(group, first, NEXT)
        group.ready()
        last.committed("last")
        done.append(b"last")
        group.everywhere("a", *done)
        group.everywhere("b", b"tx 0", b"tx 1", b"last")
        assert set(wire_versions(group).values()) == {3}
        group.until("the newer format is written", lambda: written(second) == 7)
        offset = write_future(group)
        group.until("all hold it", lambda: all(node.node.state.log.durable >= offset for node in group.nodes))
        for node in group.nodes:
            assert node.release is NEXT


def test_the_newer_program_leads_older_ones() -> None:
    """The other way round, since a primary may die in the midst of an upgrade: all of it stays in the older format."""
    with scenario() as group:
        hand = group.hand()
        for queue in ("a", "b"):
            hand(calls.declare, queue)
        newer, older = group.backups
        run(group, newer, NEXT)
        group.ready()
        committing = opened(group, "one")
        committing.committed("one")
        first = group.replace_primary(newer)
        first.start()
        group.ready()
        assert written(newer) == 6
        assert wire_versions(group) == {frozenset({newer.name, name}): 2 for name in (first.name, older.name)}
        opened(group, "two").committed("two")
        group.everywhere("a", b"one", b"two")
        assert not newer.node.state.log.may_hold(FUTURE_KIND)
        assert newer.node.state.log.may_hold(record.COMMIT)
        with pytest.raises(
            AssertionError, match=f"kind {FUTURE_KIND} is appended, {record.EXCHANGE_UNBIND} is the newest"
        ):
            newer.node.broker.batch.append_record(future_record(1))
        run(group, older, NEXT)
        group.ready()
        group.run_ms(1_000)
        assert written(newer) == 6, f"{first.name} still runs the older program"
        raised = group.world.happened["log format"]
        run(group, first, NEXT)
        group.ready()
        group.until("the newer format is written", lambda: written(newer) == 7)
        assert group.world.happened["log format"] == raised + 1
        write_future(group, 2)
        opened(group, "three").committed("three")
        group.everywhere("b", b"one", b"two", b"three")


def test_a_member_that_has_not_linked_yet_holds_the_format_back() -> None:
    """The primary does not know what it reads; that it was of the newer program once says nothing."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        for node in group.nodes:
            run(group, node, NEXT)
        group.ready()
        absent, successor = group.backups
        group.cut_both(absent, successor)
        group.replace_primary(successor)
        group.until("the other two are linked", lambda: successor.ha.primary is not None)
        group.run_ms(3_000)
        assert absent.name in group.members
        assert written(successor) == 1
        group.mend()
        group.until("the newer format is written", lambda: written(successor) == 7)


def test_who_does_not_read_the_format_in_force_is_turned_away() -> None:
    """A broker that missed the upgrade: it is told to be upgraded, tries slowly, and joins when it is."""
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "a")
        for node in group.nodes:
            run(group, node, NEXT)
        group.ready()
        group.until("format 7", lambda: written(group.primary) == 7)
        primary, late = group.primary, group.backups[0]
        run(group, late, THIS)
        hand = group.hand()
        hand.publish("a", b"1")
        group.expelled(late)
        refused = group.world.happened["link refused"]
        group.run_ms(A_WHILE_MS)
        assert 1 <= group.world.happened["link refused"] - refused <= TRIES
        [text] = set(refusals(primary))
        assert (
            f"{primary.name} writes the log in format 7, {late.name} reads formats up to 6: upgrade {late.name}" in text
        )
        assert late.up
        run(group, late, NEXT)
        group.ready()
        group.everywhere("a", b"1")


def test_who_waits_for_the_epoch_to_begin_is_looked_at_again() -> None:
    """A joiner said what it reads before anything could be sent to it; meanwhile the primary, alone in its set, goes on."""
    with scenario(brokers=2, min_insync=1) as group:
        primary, joiner = group.primary, group.backups[0]
        group.away(joiner)
        group.crash(primary)
        primary.release = NEXT
        group.hold_disk(primary)
        primary.start()
        group.until("it leads, and its first record is not on its disk", lambda: primary.ha.primary is not None)
        leading = primary.ha.primary
        assert leading is not None
        leading.log_format.raise_for = lambda backups, *others: False  # type: ignore[method-assign]  # its time has not come
        joiner.resume()
        group.until(  # by a link that it dialed because of this epoch: the one before ends
            "it waits", lambda: bool(leading._waiting_syncs) and joiner.ha.backup._dialed_epoch == leading.epoch
        )
        assert written(primary) == 1
        del leading.log_format.raise_for
        group.until("format 7", lambda: written(primary) == 7)
        assert leading._waiting_syncs
        group.free_disk(primary)
        group.until("it is refused", lambda: bool(refusals(primary)))
        assert f"{primary.name} writes the log in format 7, {joiner.name} reads formats up to 6" in refusals(primary)[0]
        run(group, joiner, NEXT)
        group.ready()


def test_a_record_of_an_unknown_kind_is_refused() -> None:
    """A primary that breaks the rule (its check is put out of force): nobody takes the record, nothing else is lost."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        hand.publish("a", b"1")
        group.everywhere("a", b"1")
        primary, backups = group.primary, group.backups
        before = [node.node.state.log.end for node in backups]
        primary.node.state.log.newest_kind = FUTURE_KIND
        primary.release = NEXT
        primary.release.install(primary.node.state)
        write_future(group)
        group.run_ms(A_WHILE_MS)
        for node, end in zip(backups, before, strict=True):
            lines = refusals(node)
            assert 2 <= len(lines) <= TRIES
            assert f"{node.name} cannot read what {primary.name} sends: record kind {FUTURE_KIND}" in lines[0]
            assert f"Upgrade {node.name} (the backups first, the primary last)" in lines[0]
            assert node.up
            assert node.node.state.log.end == end
            assert group.bodies(node, "a") == [b"1"]
            assert node.name in group.members
        for node in backups:
            run(group, node, NEXT)
        group.ready()
        hand.publish("a", b"2")
        group.everywhere("a", b"1", b"2")


def pieces(primary: SimNode) -> dict[str, bytes]:
    """Messages of a catch-up that hold something of the future."""
    state = primary.node.state
    meta = Meta.of(state)
    base = wire.encode_base(wire.BASE_NEW, attrs.evolve(meta, topology=(*meta.topology, future_record(1))).encode())
    transaction = snapshot.encode_transaction_piece(wire.TRANSACTION, [(state.log.end, future_record(1))])
    return {"base": base, "transaction": transaction, "message": bytes((77, 1, 2, 3))}


@pytest.mark.parametrize("what", ["base", "transaction", "message"])
def test_a_message_of_an_unknown_kind_is_refused_by_a_backup(what: str) -> None:
    """As a whole, and the backup keeps what it has."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        hand.publish("a", b"1")
        group.everywhere("a", b"1")
        primary, backup = group.primary, group.backups[0]
        leading = primary.ha.primary
        assert leading is not None
        link = leading.backups[backup.name].link
        assert link is not None
        message = pieces(primary)[what]
        primary.run(lambda: link.send(message))
        group.until("it is refused", lambda: bool(refusals(backup)))
        [line] = refusals(backup)
        kind = 77 if what == "message" else FUTURE_KIND
        assert f"{backup.name} cannot read what {primary.name} sends: " in line
        assert f"kind {kind} " in line
        assert backup.up
        hand.publish("a", b"2")
        group.everywhere("a", b"1", b"2")


def test_a_message_of_an_unknown_kind_is_refused_by_the_primary() -> None:
    """Again and again: the backup that sends it comes back more and more slowly."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        primary, backup = group.primary, group.backups[0]
        takes = backup.ha.backup.take

        def answers_with_something_new(link: object, message: bytes) -> None:
            takes(link, message)  # type: ignore[arg-type]
            if message[0] == wire.RESUME:
                link.send(bytes((77,)))  # type: ignore[attr-defined]

        backup.ha.backup.take = answers_with_something_new  # type: ignore[method-assign]
        backup.ha.backup.link.close("again")  # type: ignore[union-attr]
        backup.event(lambda ha: ha.link_lost(ha.backup.link, "again"))  # type: ignore[arg-type]
        group.run_ms(A_WHILE_MS)
        lines = refusals(primary)
        assert 2 <= len(lines) <= TRIES
        assert f"{primary.name} cannot read what {backup.name} sends: message of kind 77 is not known" in lines[0]
        assert f"Upgrade {primary.name}" in lines[0]
        backup.ha.backup.take = takes  # type: ignore[method-assign]
        hand.publish("a", b"1")
        group.everywhere("a", b"1")


def test_versions_that_do_not_meet_are_refused() -> None:
    """Two versions at once were skipped: both names, both ranges, and what to do."""
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "a")
        backup = group.backups[0]
        run(group, backup, AFTER_NEXT)
        hand.publish("a", b"1")
        group.expelled(backup)
        dials = group.cluster.network.refused
        group.run_ms(A_WHILE_MS)
        assert 2 <= group.cluster.network.refused - dials <= TRIES
        assert (
            f"wire versions do not meet: {backup.name} speaks 3 to 4, {group.primary.name} speaks 1 to 2; upgrade "
            f"{group.primary.name} (the backups first, the primary last)"
        ) in "; ".join(backup.ha.blockers())
        assert backup.up
        run(group, backup, THIS)
        group.ready()


def test_a_step_down_to_a_newer_program_leaves_the_former_primary_in_the_set() -> None:
    """The successor waits with the newer format for the former primary, which is upgraded last."""
    with scenario() as group:
        first = group.primary
        for backup in group.backups:
            run(group, backup, NEXT)
        group.ready()
        command(first, "step-down")
        group.until("handed over", lambda: first.ha.primary is None)
        first.pause()  # it takes its time to recover
        group.until("led by another", lambda: group.cluster.primary() is not None)
        group.run_ms(1_000)
        assert written(group.primary) == 6
        first.resume()
        group.ready()
        assert written(group.primary) == 6
        group.run_ms(A_WHILE_MS)
        assert written(group.primary) == 6
        assert first.name in group.members
        run(group, first, NEXT)
        group.ready()
        group.until("the newer format is written", lambda: written(group.primary) == 7)
