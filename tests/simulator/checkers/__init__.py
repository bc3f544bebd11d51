"""Checkers: each watches every broker for some of the promises (docs/GLOSSARY.md), at every step.

The cost of a step does not depend on how long queues are.

=================  ==================  ==================================================================================
checker            promises            what it watches
=================  ==================  ==================================================================================
``chosen_log``     G4, G6, G7          the longest prefix any primary took for stable; whose disk holds it
``reference``      G1, G2, G6, G8, G9  what that prefix says; contradictions in the log itself
``replicas``       G1, G2, G3, G5, G7  every broker's queues, branches and outcomes against the reference, after every event
``order``          G3, G8, G9          ids as they are applied, messages as they are handed out, and how many
``statements``     G2, G4              acknowledgements and refusals between brokers
``in_sync``        G4, G6, G7          changes of the stored set, statuses that are shown
``hand_overs``     G7                  who is named as successor and who leads then; that a barred broker stays out
``answers``        G3, G4, G8          what clients are told, when they are told
``levels``         -                   what is not replicated, on the log and on brokers that do not lead
``routes``         G2                  that a broker routes by what the log declares and binds, at the end
``holders``        -                   that somebody has what is handed out, and what takes places of a prefetch, at the end
``turns``          -                   that nothing which may be said waits for another event
``restart``        G1, G5, G7, G8      what a disk gives back, as if its broker were killed now: now and then, and of all at the end
``returns``        -                   that counts of failures never go back, and that nothing is handed out before it is due
``served``         -                   which consumer is given a message, and for how long it keeps it
``limits``         -                   that no queue holds more than it may
``moved_once``     G1, G4              that what moves from queue to queue is in one of them, at the end
``came_once``      G2, G4              that a confirmed repeated message has come, and brokers know the same ids, at the end
``kept_bodies``    G1                  that a journal gives back the bodies of messages in queues, now and then
``accounts``       G1, G3, G4, G8      the clients' own books against the reference, at the end
=================  ==================  ==================================================================================

They sit on the points where a broker's state changes (`checkers.instruments`), on the wire and on the store; the product knows
nothing of them. No checkers are `declared` (what the log declares and binds), `lost_transients` (what a successor need not know)
and `fair_time` (when a message may expire).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.checkers.answers import Answers
from tests.simulator.checkers.chosen_log import ChosenLog
from tests.simulator.checkers.hand_overs import HandOvers
from tests.simulator.checkers.in_sync import InSync
from tests.simulator.checkers.instruments import watch_core
from tests.simulator.checkers.levels import Levels
from tests.simulator.checkers.limits import check_limits
from tests.simulator.checkers.order import Order
from tests.simulator.checkers.reference import Reference
from tests.simulator.checkers.replicas import Replicas
from tests.simulator.checkers.returns import Returns
from tests.simulator.checkers.served import Served
from tests.simulator.checkers.statements import Statements
from tests.simulator.checkers.turns import owes_no_turn
from understudy.broker.amqp.frames import Event
from understudy.ha.status import BrokerStatus
from understudy.ha.store.coordination import GroupState

if TYPE_CHECKING:
    from tests.simulator.ledger import Ledger
    from tests.simulator.sim_client import Session
    from tests.simulator.sim_node import SimNode
    from tests.simulator.sim_store import SimStore


class Checkers:
    """All checkers of one run, and what the simulator tells them.

    Attributes:
        touched_nodes: at whom something has happened in this event; in order, and without a value.
    """

    def __init__(self, store: SimStore, ledger: Ledger) -> None:
        self.reference = Reference()
        self.chosen = ChosenLog(store, self.reference)
        self.replicas = Replicas(store, self.reference)
        self.order, self.served = Order(self.reference), Served()
        self.returns = Returns(self.reference, ledger)
        self.statements = Statements(store, self.reference)
        self.in_sync = InSync(store, self.chosen, self.replicas)
        self.hand_overs = HandOvers(store)
        self.answers = Answers(self.chosen, self.reference, ledger)
        self.levels = Levels()
        self.reference.on_commit = self.statements.committed
        self.reference.on_put = self.levels.chosen
        self.touched_nodes: dict[SimNode, None] = {}

    # -- nodes ----------------------------------------------------------------------------------------------------

    def opened(self, node: SimNode) -> None:
        """A new core of ``node`` is recovered and open."""
        watch_core(self, node)
        self.levels.holds_the_log_alone(node, "opens")
        self.chosen.check(node)
        self.touched(node)

    def leaving(self, node: SimNode) -> None:
        """The core ends, or its process dies."""
        self.chosen.leaving(node)

    def touched(self, node: SimNode) -> None:
        """Something happens at ``node``."""
        self.touched_nodes[node] = None

    def after_event(self) -> None:
        """The event is over: look at whom it touched."""
        for node in self.touched_nodes:
            if node.up:
                self.replicas.check(node)
                owes_no_turn(node)
                check_limits(node)
                self.served.check(node)
                watched, durable = node.watched, node.journal.durable_offset
                if durable < watched.durable_offset:
                    self.chosen.check(node)
                watched.durable_offset = durable
        self.touched_nodes.clear()

    def shown(self, node: SimNode, status: BrokerStatus, blockers: str) -> None:
        self.in_sync.shown(node, status, blockers)
        self.hand_overs.shown(node, status)

    # -- the wire and the store -----------------------------------------------------------------------------------

    def sent(self, source: SimNode, target: SimNode, message: bytes) -> None:
        self.statements.sent(source, target, message)

    def store_changed(self, before: GroupState | None, after: GroupState) -> None:
        self.in_sync.changed(before, after)
        self.hand_overs.changed(before, after)

    def said(self, session: Session, event: Event) -> None:
        self.answers.said(session, event)
