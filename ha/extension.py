"""HaExtension: the plugin's deciding part inside one broker node: replicator and HaBroker."""

from __future__ import annotations

from collections.abc import Callable

from understudy.broker.core.broker import Broker
from understudy.broker.core.state import BrokerState
from understudy.broker.log.journal_gate import JournalGate
from understudy.ha.ha_broker import HaBroker, HaHost
from understudy.ha.settings import HaSettings
from understudy.ha.store.coordination import Coordination
from understudy.replicator.fabric import Fabric
from understudy.replicator.receiving.broker_replicator import BrokerReplicator


class HaExtension:
    """Implements ``broker.plugin_api.core_extension.CoreExtension``.

    ``ha`` is there after :meth:`opened`, and with it the calls of each turn, which are its own.
    """

    replicator: BrokerReplicator
    ha: HaBroker
    durable: Callable[[], None]
    end_turn: Callable[[bool], bool]
    after_turn: Callable[[], None]

    def __init__(self, config: HaSettings, coordination: Coordination, fabric: Fabric, host: HaHost) -> None:
        self._config = config
        self._coordination = coordination
        self._fabric = fabric
        self._host = host

    def attach(self, state: BrokerState) -> None:
        self.replicator = BrokerReplicator(state)

    def replay_note(self, kind: int, payload: bytes, place: int = 0) -> None:
        self.replicator.replay_note(kind, payload, place)

    def replay_extras(self, payload: bytes, at: int) -> None:
        self.replicator.replay_extras(payload, at)

    def extras(self) -> bytes:
        return self.replicator.extras()

    def opened(self, broker: Broker, gate: JournalGate) -> None:
        self.replicator.recovered(gate)
        self.ha = HaBroker(self._config, broker, self.replicator, gate, self._coordination, self._fabric, self._host)
        self.durable = self.ha.durable
        self.end_turn = self.ha.end_turn
        self.after_turn = self.replicator.apply_told
        self.ha.start()

    def disk_low(self, reason: str, room: int) -> None:
        self.ha.disk_low(reason, room)

    def tick(self, now_ms: int) -> None:
        self.ha.tick(now_ms)
