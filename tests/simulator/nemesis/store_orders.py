"""Changes that an operator writes into the store, as the commands ``expel`` and ``admit`` do while no primary runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from understudy.broker.plugin_api.plugin_commands import CommandRefusedError
from understudy.ha.operators.bars import admission, expulsion_without_primary
from understudy.ha.store.coordination import Bar

if TYPE_CHECKING:
    from tests.simulator.nemesis.havoc import Havoc


def write_in_store(havoc: Havoc, verb: str, command: str, about: str) -> bool:
    """Change the stored group; False if the command refuses that, or its operator would.

    Args:
        havoc: of the run.
        verb: under which it is counted.
        command: ``expel`` or ``admit``.
        about: the broker that it names.
    """
    group, infos = havoc.store.group, havoc.store.brokers()
    if group is None or infos[group.primary].alive or havoc.node(group.primary).up:
        return False
    try:
        if command == "expel":
            wanted = expulsion_without_primary(group, infos, Bar(about, "operator"))
        else:
            wanted = admission(group, infos, about)
    except CommandRefusedError:
        return False
    copies = [name for name in wanted.members if not havoc.node(name).wiped and not havoc.node(name).lost_tail]
    if wanted is group or not copies:  # an operator looks at disks before that
        return False
    havoc.world.fault(verb, f"{command} {about} in the store")
    havoc.store.change(attrs.evolve(wanted, version=group.version + 1))
    return True
