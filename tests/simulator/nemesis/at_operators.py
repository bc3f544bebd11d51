"""Strikes of an operator: what a person types at the wrong moment."""

from __future__ import annotations

import attrs

from tests.simulator.nemesis.havoc import Havoc
from tests.simulator.nemesis.store_orders import write_in_store
from tests.simulator.nemesis.strike import Strike
from tests.simulator.operator import command


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
            return write_in_store(havoc, self.verb, self.command, self.about)
        node = havoc.node(self.broker)
        if not node.up or node.paused or not node.node.broker.role.answering:
            return False
        key = "to" if self.command == "step-down" else "broker"
        havoc.world.fault(self.verb, f"{self.command} {self.about} at {self.broker} {why}".rstrip())
        command(node, self.command, **({key: self.about} if self.about else {}))
        return True
