"""Unclean promotion: who may be made the base of a group by force, and what is lost by it.

In order a broker leads only if the store lists it, for then it holds all that was ever confirmed. When the store is
lost, or everybody whom it lists, an operator may choose another: a consistent state of the group, at some earlier moment. Nobody
but he can know that the others are really gone. This module says what speaks against it and what it costs; ``promote_command``
does it. See ``docs/decisions/0009-unclean-promotion.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from understudy.broker.errors import UnderstudyError
from understudy.broker.log.position import Position
from understudy.ha.store.coordination import BrokerId, BrokerInfo, GroupState

EPOCHS_SKIPPED: Final = 1_000
"""So far at least a forced epoch is above all that is known: brokers that nobody could ask may have begun others. Were two
primaries to write under the same epoch, logs that differ would look the same from there on (``log.position``)."""
EPOCHS_DRAWN: Final = 9_000
"""So many more are skipped at most, by lot: two that are forced and do not know of each other have to differ, too."""


class PromotionRefusedError(UnderstudyError):
    """This broker must not be promoted by force: it is not needed, or what it holds is no base."""


@attrs.frozen(kw_only=True)
class Survivor:
    """State of the broker to be promoted, as its journal says.

    Attributes:
        broker, group: ids.
        epoch, end: of its last record.
        stable: how far it knows its log to have been stable.
        epoch_seen: the highest epoch that it has heard of.
        part: a catch-up was broken off.
        repaired: a repair has cut the journal, so `end` is where the damage began.
        founding: of the group to which it belongs, 0 if it belongs to none.
    """

    broker: BrokerId
    group: str
    epoch: int
    end: int
    stable: int
    epoch_seen: int
    part: bool
    founding: int = 0
    repaired: bool = False

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.end)


def others_that_count(
    survivor: Survivor, group: GroupState | None, brokers: Mapping[BrokerId, BrokerInfo]
) -> list[BrokerId]:
    """Known brokers beside the survivor that may lead, or confirm: those that the store lists; all without a group."""
    listed = {group.primary, *group.members} if group is not None else set(brokers)
    return sorted(listed & brokers.keys() - {survivor.broker})


def check(
    survivor: Survivor,
    group: GroupState | None,
    brokers: Mapping[BrokerId, BrokerInfo],
    accepting: Mapping[BrokerId, str],
) -> None:
    """Do nothing if the promotion is not refused.

    Args:
        survivor: what the journal of the broker to be promoted says.
        group: what the store holds of the group, None for nothing.
        brokers: known to the store.
        accepting: brokers to which a connection could be made, and at which address. A broker that hangs, or is cut off from the
            store, has no session and no lease: the kernel of its host still accepts connections for it.

    Raises:
        PromotionRefusedError: with the reason.
    """
    me, others = survivor.broker, others_that_count(survivor, group, brokers)
    for name in sorted([*others, *({me} & brokers.keys())]):
        info = brokers[name]
        if info.alive:
            what = "runs" if name == me or group is None else "runs and is in the in-sync set"
            raise PromotionRefusedError(
                f"broker {name} (pid {info.pid}) {what}: stop it, or let it lead; nothing was changed"
            )
        if name in accepting:
            raise PromotionRefusedError(
                f"broker {name} (pid {info.pid}) accepts connections at {accepting[name]}: the store shows it as down, but it may "
                f"hang, or be cut off from the store. Stop it. If something else listens there: --gone {name}. Nothing was changed"
            )
    if not survivor.end:  # whoever founds writes a record; so it may have heard of an epoch, and holds nothing of it
        heard = f", but for epoch {survivor.epoch_seen}, which it has heard of" if survivor.epoch_seen else ""
        raise PromotionRefusedError(
            f"the journal of {me} is empty{heard}: it has nothing to lead with. With an empty data directory it joins, or founds a "
            "group (ha.found)"
        )
    if survivor.part:
        raise PromotionRefusedError(
            f"the catch-up of {me} was broken off: what it holds is no state of the group, and may be half a transaction; "
            "choose another broker"
        )


def forced_group(
    held: GroupState | None,
    broker: BrokerId,
    members: tuple[BrokerId, ...],
    *,
    seen_epoch: int,
    drawn: int,
    min_insync: int | None,
    founding: int,
) -> GroupState:
    """The state of the group that ``StoreAdmin.force`` writes over ``held``; ``drawn`` is the lot, below ``EPOCHS_DRAWN``."""
    assert broker in members, f"{broker} would lead a set it is not in: {members}"
    epoch = max(held.epoch if held is not None else 0, seen_epoch) + EPOCHS_SKIPPED + drawn
    return GroupState(
        epoch=epoch,
        primary=broker,
        members=tuple(sorted(members)),
        version=held.version + 1 if held is not None else 1,
        min_insync=min_insync or (held.min_insync if held is not None else 1),
        founding=founding,
        forced=epoch,  # what any broker lacks of earlier epochs is lost by that, too
        barred=held.admitting(broker).barred if held is not None else (),
    )


def losses(survivor: Survivor, group: GroupState | None, brokers: Mapping[BrokerId, BrokerInfo]) -> Iterator[str]:
    """Known facts and losses, line by line."""
    me = survivor.broker
    yield (
        f"{me} holds the log up to {survivor.position} and has seen epoch {survivor.epoch_seen}; "
        f"up to {survivor.stable} it knows that it was confirmed"
    )
    if survivor.repaired:
        yield f"its journal was damaged, and a repair has cut it there: what {me} had confirmed behind that is lost"
    if group is None:
        yield f"the store knows no group {survivor.group!r}"
    else:
        yield (
            f"the store: epoch {group.epoch}, primary {group.primary}, in-sync {{{', '.join(group.members)}}}, "
            f"min_insync {group.min_insync}"
        )
        for damage in group.damaged:
            yield f"  {damage.broker} is marked as damaged: {damage.lacks}"
    for name, info in sorted(brokers.items()):
        if name != me:
            beyond = f", {info.position - survivor.end} records beyond {me}" if info.position > survivor.end else ""
            state = "running" if info.alive else "down"
            yield f"  {name}: last shown at position {info.position}{beyond}; {state}"
    if others := others_that_count(survivor, group, brokers):
        yield ""
        yield "The store shows these as down, which is no proof: so it shows a broker that hangs, or is cut off from the store."
        yield "Stop each of them first. One that goes on confirms what is lost with this."
        for name in others:
            info = brokers[name]
            yield f"  {name}: pid {info.pid}, AMQP at {info.amqp or 'unknown'}, link at {info.link or 'unknown'}"
    yield ""
    yield from _verdict(survivor, group)


def _verdict(survivor: Survivor, group: GroupState | None) -> Iterator[str]:
    me = survivor.broker
    if group is None or group.epoch < survivor.epoch_seen:
        if group is not None:
            epochs = f"epoch {group.epoch} < {survivor.epoch_seen}"
            yield f"The store is behind this broker ({epochs}): it was restored from an older copy."
        yield f"Whether {me} was in the in-sync set when it stopped nobody can say. If it was not, everything that was"
        yield "confirmed after it had left is lost: commits, confirms, acknowledgements, declared queues."
    elif lacks := group.damage_of(me):
        yield f"{me} is damaged: {lacks}."
        yield "What its log lacks is lost with this. If another listed broker can come back, start that one instead."
    elif survivor.repaired:
        yield f"Everything that was confirmed behind offset {survivor.end:,} is lost with this. If another listed broker can come"
        yield "back, start that one instead."
    elif me in group.members:
        yield f"{me} is in the in-sync set: nothing that was confirmed is lost."
        yield "If another listed broker can come back, start it instead: then no broker has to be caught up from anew."
    else:
        yield f"Everything that was confirmed after {me} left the in-sync set is lost: commits, confirms, acknowledgements,"
        yield "declared queues. What was consumed since then is delivered again."
    yield f"What other brokers hold beyond {me} is dropped when they join. Make sure that none of them runs anywhere."
