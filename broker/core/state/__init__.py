"""The state of a broker, and the classes that change it by records: taking them, topology, applying."""

from understudy.broker.core.state.broker_state import BrokerState

__all__ = ["BrokerState"]
