"""Strikes of an operator: what a person types at the wrong moment."""

from __future__ import annotations

import attrs

from tests.simulation.nemesis.havoc import Havoc
from tests.simulation.nemesis.strike import Strike
from tests.simulation.operator import command
from understudy.broker.commands import CommandRefusedError
from understudy.ha.bars import admission, expulsion_without_primary
from understudy.ha.coordination import Bar


@attrs.frozen(kw_only=True)
class Order(Strike):
    """An operator gives a command: ``step-down``, ``expel`` or ``admit``.

    Attributes:
        command: which.
        broker: to whom it is given; "" writes the store, as the command does while no primary runs.
        about: the broker that it names; "" for none.
    """

    verb = "operator"
    command: str
    broker: str = ""
    about: str = ""

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        havoc.has_operator = True
        if not self.broker:
            return self._write(havoc)
        node = havoc.node(self.broker)
        if not node.up or node.paused or not node.node.broker.answering:
            return False
        key = "to" if self.command == "step-down" else "broker"
        havoc.world.fault(self.verb, f"{self.command} {self.about} at {self.broker} {why}".rstrip())
        command(node, self.command, **({key: self.about} if self.about else {}))
        return True

    def _write(self, havoc: Havoc) -> bool:
        group, infos = havoc.store.group, havoc.store.brokers()
        if group is None or infos[group.primary].alive or havoc.node(group.primary).up:
            return False
        try:
            if self.command == "expel":
                wanted = expulsion_without_primary(group, infos, Bar(self.about, "operator"))
            else:
                wanted = admission(group, infos, self.about)
        except CommandRefusedError:
            return False
        copies = [name for name in wanted.members if not havoc.node(name).wiped and not havoc.node(name).lost_tail]
        if wanted is group or not copies:  # an operator looks at disks before that
            return False
        havoc.world.fault(self.verb, f"{self.command} {self.about} in the store")
        havoc.store.change(attrs.evolve(wanted, version=group.version + 1))
        return True
