"""More is written than is kept of the log while a catch-up sends what is open: the base moves on, and it comes to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.simulation.half_sent_kit import BODIES, catch_up_of, half_sent
from tests.simulator.scenario import MS, PERSISTENT, Scenario, SimNode, calls, scenario
from understudy.replicator import wire
from understudy.replicator.id_set import IdSet
from understudy.replicator.sending.catch_up import CatchUp

BASES_AT_MOST = 12
LOAD_FOR_MS = 3_000


@pytest.mark.parametrize("ending", ["commit", "rollback", "its primary dies", "the joiner dies"])
def test_the_log_may_grow_by_more_than_is_kept_while_it_is_sent(ending: str) -> None:
    """The base moves on: what the transactions got since is sent, and nothing of before again."""
    with scenario(kept_bytes=2_000, piece_bytes=200, pieces_in_flight=2) as group:
        setup = group.hand()
        for queue in ("q", "gone", "other"):
            setup(calls.declare, queue)
        setup.go()
        ended = group.hand(transactional=True)
        ended.publish("gone", *BODIES[:5])
        hand = group.hand(transactional=True)
        hand.publish("q", *BODIES)
        joiner = group.backups[0]
        group.away(joiner)
        catch_up = half_sent(group, joiner)
        base = catch_up.base
        group.hold_disk(joiner)
        late = group.hand(transactional=True)
        late.publish("q", *BODIES[:3])  # begins behind the first base
        hand.publish("q", b"more")
        ended(calls.rollback)
        writer = group.hand()
        for number in range(40):
            writer.publish("other", b"%03d" % number + bytes(200))
        assert not catch_up.opened, "else nothing is shown"
        assert catch_up_of(group, joiner) is catch_up, "it has not begun again"
        group.free_disk(joiner)

        if ending == "its primary dies":
            group.replace_primary(group.backups[1], hard=True)
            group.heal()
        elif ending == "the joiner dies":
            group.until("the base has moved", lambda: catch_up.base > base)
            group.crash(joiner)
            group.heal()
        group.ready()
        if ending in ("commit", "rollback"):
            assert catch_up.base > base
            assert catch_up_of(group, joiner) is catch_up, "one catch-up was enough"
        if ending == "rollback":
            hand(calls.rollback)
            late(calls.rollback)
        elif ending != "its primary dies":
            for each in (late, hand):
                each.committed()
        committed = ending in ("commit", "the joiner dies")
        group.everywhere("q", *((*BODIES[:3], *BODIES, b"more") if committed else ()))
        group.everywhere("gone")


@contextmanager
def bases(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The forms of the bases that catch-ups put while this lasts."""
    forms: list[int] = []
    real = wire.encode_base

    def encode_base(form: int, meta: bytes, kept: list[tuple[int, int]], lacking: bool) -> bytes:
        if form != wire.BASE_OF_REFILL:
            forms.append(form)
        return real(form, meta, kept, lacking)

    with monkeypatch.context() as patch:
        patch.setattr(wire, "encode_base", encode_base)
        yield forms


def opens_under_load(group: Scenario, joiner: SimNode, also: Callable[[int], None]) -> bool:
    """True if the joiner's catch-up comes so far that the log follows, while a message is written every millisecond."""
    writer = group.hand()
    world = group.world

    def opened() -> bool:
        catch_up: CatchUp | None = catch_up_of(group, joiner)
        return catch_up is not None and catch_up.opened

    for number in range(LOAD_FOR_MS):
        writer.client.publish("", "other", PERSISTENT, b"%06d" % number + bytes(200))
        also(number)
        if world.run(world.now_us + MS, opened):
            writer.go()
            return True
    return False


def test_what_a_base_has_dropped_the_next_does_not_drop_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each round of a catch-up beside load is as long as there are queues of which the joiner held too much."""
    dropped: list[int] = []
    real = wire.encode_drop

    def encode_drop(queue_id: int, ids: IdSet) -> bytes:
        dropped.append(queue_id)
        return real(queue_id, ids)

    monkeypatch.setattr(wire, "encode_drop", encode_drop)
    with scenario(kept_bytes=2_000, piece_bytes=200, pieces_in_flight=2) as group:
        setup = group.hand()
        names = [f"old{number}" for number in range(40)]
        for name in (*names, "late", "q", "other"):
            setup(calls.declare, name)
        for name in (*names, "late"):
            setup.publish(name, b"to go")
        group.everywhere("late", b"to go")
        hand = group.hand(transactional=True)
        hand.publish("q", *BODIES)
        joiner = group.backups[0]
        group.away(joiner)
        for name in names:
            setup(calls.purge, name)
        with bases(monkeypatch) as forms:
            catch_up = half_sent(group, joiner)
            group.hold_disk(joiner)
            setup(calls.purge, "late")
            for number in range(40):
                setup.publish("other", b"%03d" % number + bytes(200))
            assert not catch_up.opened, "else nothing is shown"
            group.free_disk(joiner)
            group.ready()
        assert forms == [wire.BASE_NEW, wire.BASE_AGAIN]
        assert len(dropped) == len(set(dropped)) == len(names) + 1
        hand.committed()
        group.everywhere("q", *BODIES)
        group.everywhere("late")


def test_many_small_transactions_delay_no_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pieces that is: what counts is the bytes that are in flight."""
    with scenario(kept_bytes=4_000, piece_bytes=20_000, pieces_in_flight=2) as group:
        setup = group.hand()
        for name in ("q", "other"):
            setup(calls.declare, name)
        hands = [group.hand(transactional=True) for _ in range(40)]
        for hand in hands:
            hand.publish("q", b"begun")
        joiner = group.backups[0]
        group.away(joiner)
        for _ in range(3):
            group.move_the_kept_log_on()
        with bases(monkeypatch) as forms:
            joiner.resume()
            assert opens_under_load(
                group, joiner, lambda number: hands[number % 40].client.publish("", "q", PERSISTENT, b"more")
            )
        assert 0 < len(forms) <= BASES_AT_MOST
