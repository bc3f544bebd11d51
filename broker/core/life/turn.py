"""TurnEngine: when a broker's turn is ended, and in which order.

Whatever arrives (bytes of a client, a message on a link, a finished fsync, an answer of the coordination store, a tick) is
fed to the core and asks for a turn. The edge ends the turn when it has fed everything that was ready. So whatever came in the
same moment shares one batch, one fsync and one write a socket.

A turn, step by step, and what each step waits for:

1. **answer**: what became stable is applied, consumers are served, whatever waited for it is released. It waits for the
   stable position: the fsync here, and the acknowledgements that a plugin asks for. Nothing else answers a client.
2. **clients, early**: if no other broker and no client waits for what the rest of the turn brings, the clients that have output
   are written to now.
3. **gather**: commits are ordered, what was appended becomes one batch, which goes to the journal's buffer and to the links'
   buffers. If nothing that waits was appended, it is *left* for a later turn, at most `lazy_us`.
4. **links**: one write a link. Another broker may hold a batch before this one's own disk does; that is what acknowledgements
   are counted for.
5. **clients**: one write a client that has output. It holds what step 1 released, and nothing of this turn's batch.
6. **journal**: the next group is given to the disk if none is under way. The edge may sync it on the spot; then
   :meth:`TurnEngine.durable` is called in this step, sends the acknowledgement of a broker that follows, and asks for another turn
   if something became stable.
7. **after the turn**: what nobody waits for. A broker that follows applies. A slice is done of what was put off
   (``core/queues/put_off.py``); the next turn follows at once, behind what has arrived meanwhile.

The engine does no I/O and decides no more than this order. The server (``broker.server.turn.node_driver``) and the simulator
(``tests/simulator/sim_node.py``) drive the same engine.
"""

from __future__ import annotations

from typing import Final, Protocol

from understudy.broker.core.commits.commit_times import CommitTimes
from understudy.broker.core.life.gate_port import GatePort
from understudy.broker.core.life.node import BrokerNode

EARLY_US: Final = 500
"""A timer that fires so much early is not set again: some event loops have timers of whole milliseconds."""

WITHHELD_US: Final = 1_000
"""What a coordinator withholds waits for its next offer at least that long, even if nothing else is left for later."""


class TurnPort(Protocol):
    """Calls of a turn to the edge. Everything is called on the edge's one thread."""

    def ask(self) -> None:
        """Call :meth:`TurnEngine.end` once, when everything that is ready has been fed. Not before this returns."""

    def now_us(self) -> int:
        """A monotonic clock, microseconds."""

    def wake_in(self, delay_us: int) -> None:
        """Call :meth:`TurnEngine.wake` once, in about ``delay_us``."""

    def flush_links(self) -> None:
        """Write what was said on links."""

    def flush_clients(self) -> None:
        """Write to the clients that have output, and read on from those that may be read again."""

    def begin_group(self) -> None:
        """Give the disk the journal's next group, if there is one and none is under way; see step 6."""

    def turn_over(self) -> None:
        """The turn is over, its last step included."""

    def crashed(self, event: str, error: BaseException) -> None:
        """The core raised what it should not. Does not return."""


class TurnEngine:
    """Ends the turns of one broker process, whose cores come and go.

    Attributes:
        node: the running core; None before the first one and between two.
        asked: a turn is asked for and not ended yet.
        woken: a client has output, or is to be read on; set by :meth:`wake_clients`.
        left: records, or a stable position, wait for a later turn because nobody waits for them.
        commit_times: of the running core.
        waking: :meth:`TurnPort.wake_in` was called and :meth:`wake` was not yet.

    Invariant: ``left`` implies ``waking`` or ``asked``; and while a core leads, ``node.due`` implies ``asked``, between any two
    events.
    """

    def __init__(self, port: TurnPort, lazy_us: int) -> None:
        """``lazy_us``: how long records that nobody waits for may be left."""
        self.node: BrokerNode | None = None
        self.asked = False
        self.woken = False
        self.left = False
        self.waking = False
        self.commit_times: CommitTimes | None = None
        self._port = port
        self._gate_port: GatePort | None = None
        self._lazy_us = lazy_us
        self._left_us = 0
        self._flush = False
        self._asked_again = False

    # -- cores ----------------------------------------------------------------------------------------------------

    def opened(self, node: BrokerNode, gate_port: GatePort) -> None:
        """A core begins to run; ``gate_port`` counts what its journal has made durable."""
        self.node = node
        self._gate_port = gate_port
        self.commit_times = CommitTimes(node.broker.transactions.coordinator.group_sizes, node.state.log)

    def dropped(self) -> None:
        """The core ends. Turns go on, without it."""
        self.node = self._gate_port = self.commit_times = None

    # -- what asks for a turn -------------------------------------------------------------------------------------

    def request(self, at_once: bool = False) -> None:
        """Something was fed to the core.

        Args:
            at_once: it came alone, as far as is known. A broker that does not lead ends the turn here and now: it hears from
                the broker that leads alone, so nothing else could be ready and share the turn.
        """
        if self.asked:
            return
        self.asked = True
        if at_once and self.node is not None and not self.node.role.leading:
            self.end()
        else:
            self._port.ask()

    def request_flush(self) -> None:
        """Ask for a turn that leaves nothing for later."""
        self._flush = True
        self.request()

    def wake_clients(self) -> None:
        """A client has output, or is to be read on: the turn's step 5 looks after it."""
        self.woken = True
        if not self.asked:
            self.asked = True
            self._port.ask()

    def wake(self) -> None:
        """The time of :meth:`TurnPort.wake_in` is over: what was left has waited long enough, if it is still there."""
        self.waking = False
        if not self.left:
            return
        rest_us = self._left_us + self._wait_us() - self._port.now_us()
        if rest_us > EARLY_US:
            self.waking = True
            self._port.wake_in(rest_us)
        else:
            self.request_flush()

    def durable(self) -> bool:
        """More of the journal is fsynced.

        Returns:
            Whether a turn follows. If none does, the acknowledgement of a broker that follows has been written already.
        """
        node, gate_port = self.node, self._gate_port
        if node is None or gate_port is None:
            return True
        try:
            node.durable_to(gate_port.durable_frames())
            due = node.due
        except Exception as error:  # nothing of a peer is looked at here: what the core raises is its own
            self._port.crashed("a finished fsync", error)
            raise
        if due:
            self.request()
        else:
            self._port.flush_links()
        return due

    # -- the turn -------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End the turn, in the order of the module's text."""
        node, port = self.node, self._port
        try:
            if node is not None:
                self._answer(node)
                self._gather(node)
                port.flush_links()
        finally:
            # What a core says in its own turn goes out in it; from here on a request asks for another turn.
            self.asked = self._asked_again
            self._asked_again = False
        if self.woken:
            self.woken = False
            port.flush_clients()
        port.begin_group()
        if node is not None:
            try:
                again = node.after_turn()
            except Exception as error:  # as in durable
                port.crashed(f"after a turn, log at {node.state.log.position}", error)
                raise
            if again:
                self.request()
        port.turn_over()

    def _answer(self, node: BrokerNode) -> None:
        try:
            node.answer()
            if self.commit_times is not None:
                self.commit_times.answered(self._port.now_us)
            early = self.woken and not node.urgent
        except Exception as error:  # as in durable
            self._port.crashed(f"end of a turn, log at {node.state.log.position}", error)
            raise
        if early:
            self.asked = self.woken = False  # the core has answered: a client that takes more has it in the next turn
            self._port.flush_clients()
            self._asked_again, self.asked = self.asked, True

    def _gather(self, node: BrokerNode) -> None:
        try:
            left = node.gather(self._flush)
            if self.commit_times is not None:
                self.commit_times.gathered(self._port.now_us)
        except Exception as error:  # as in durable
            self._port.crashed(f"end of a turn, log at {node.state.log.position}", error)
            raise
        self._flush = False
        if not left:
            self.left = False
        elif not self.left or not self.waking:
            self._leave()

    def _leave(self) -> None:
        """This turn is the first to leave something for later.

        One timer looks after what is left, and is not set anew by each turn.
        """
        self.left = True
        self._left_us = self._port.now_us()
        if not self.waking:
            self.waking = True
            self._port.wake_in(self._wait_us())

    def _wait_us(self) -> int:
        """How long what is left may wait. Without a bound below, a coordinator that withholds would be asked in each turn."""
        if self._lazy_us < WITHHELD_US and self.node is not None and self.node.withholds:
            return WITHHELD_US
        return self._lazy_us
