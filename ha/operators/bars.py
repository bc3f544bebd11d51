"""Bars: which broker an operator may keep out of the in-sync set, and what the group is then. Decides; asks nobody.

Used by the primary (`operators/commands.py`) and, while none runs, by the command itself (`operators/edge/cli.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from understudy.broker.plugin_api.plugin_commands import CommandRefusedError
from understudy.ha.store.coordination import Bar, BrokerId, BrokerInfo, GroupState


def expulsion(group: GroupState, known: Iterable[BrokerId], bar: Bar) -> GroupState:
    """The group with ``bar``; ``group`` itself if that broker is barred already. The version is the caller's business.

    Args:
        group: as the store holds it.
        known: all brokers that there are, beside those that ``group`` names.
        bar: of which broker, and by whom.

    Raises:
        CommandRefusedError: there is no such broker, or the group cannot do without it.
    """
    name = bar.broker
    _check_known(group, known, name)
    if group.bar_of(name) is not None:
        return group
    if name == group.primary:
        raise CommandRefusedError(
            f"{name} is the primary of epoch {group.epoch}: another broker has to lead first (understudy step-down)"
        )
    left = len(group.members) - 1
    if name in group.members and left < group.min_insync:
        raise CommandRefusedError(
            f"the in-sync set {{{', '.join(group.members)}}} would shrink to {left} without {name}, and min_insync is "
            f"{group.min_insync}: nothing could be confirmed"
        )
    return group.barring(bar)


def expulsion_without_primary(group: GroupState, brokers: Mapping[BrokerId, BrokerInfo], bar: Bar) -> GroupState:
    """The same while no primary runs, by what the store knows of the ``brokers``.

    Raises:
        CommandRefusedError: also if a listed broker runs and no other one does: that is the one to take over.
    """
    wanted = expulsion(group, brokers, bar)
    running = {name for name, info in brokers.items() if info.alive}
    if bar.broker in running & {*group.members} and not running & {*wanted.members}:
        raise CommandRefusedError(
            f"{bar.broker} runs and is in the in-sync set, and none of {{{', '.join(wanted.members)}}} runs: start another "
            "broker of the set first, or no broker could lead"
        )
    return wanted


def admission(group: GroupState, known: Iterable[BrokerId], broker: BrokerId) -> GroupState:
    """The group without a bar of ``broker``; ``group`` itself if there is none.

    Raises:
        CommandRefusedError: there is no such broker.
    """
    _check_known(group, known, broker)
    return group if group.bar_of(broker) is None else group.admitting(broker)


def _check_known(group: GroupState, known: Iterable[BrokerId], name: BrokerId) -> None:
    names = {group.primary, *group.members, *known, *(bar.broker for bar in group.barred)}
    if name not in names:
        raise CommandRefusedError(
            f"there is no broker {name!r:.80} in this group: its brokers are {', '.join(sorted(names))}"
        )
