"""The nemesis: faults at random moments, often several at once, some in ambush; and healing at the end.

==================  ===============================================================================================
``nemesis``         draws strikes from the seed, and keeps a record of those that hit
``scripted``        does what a script says instead: the strikes of such a record, or some of them
``strikes``         what there is: each kind a class, with whom it hits and for how long
``strike``          the form of a strike
``at_brokers``      strikes at processes, machines and disks
``at_network``      strikes at links, clients' connections and the store
``at_operators``    strikes of an operator; ``store_orders`` has those that are written into the store
``ambushes``        strikes that wait for a moment of the protocol
``havoc``           what is out of order in a cluster because of them, and how it is put in order again
==================  ===============================================================================================

Chance chooses, a strike does: so what was done to a cluster in one run can be done to it again, in part (`shrinking`).
"""

from __future__ import annotations

from tests.simulator.nemesis.nemesis import Nemesis
from tests.simulator.nemesis.scripted import ScriptedNemesis

__all__ = ["Nemesis", "ScriptedNemesis"]
