"""Bugs of exchanges that are bound to exchanges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.clients import publishing
from understudy.broker.core.life.meta import Meta
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.core.topology import copies, routing
from understudy.broker.core.topology.exchanges import Exchange, ExchangeBinding
from understudy.broker.core.topology.registry import TopologyImage
from understudy.broker.log import record
from understudy.replicator.sending import catch_up


@mutation("routing")
def an_exchange_with_queues_passes_nothing_on(bug: Bug) -> None:
    """A message that finds a queue of its exchange does not go on to others."""
    real = routing.route

    def route(
        exchanges: Mapping[str, Exchange], first: Exchange, keys: Sequence[str], properties: bytes
    ) -> tuple[list[Queue], bool]:
        queues, by_headers = real(exchanges, first, keys, properties)
        own = {
            binding.queue
            for binding in first.bindings.values()
            if not isinstance(binding, ExchangeBinding) and binding.queue in queues
        }
        if first.onward and own and len(own) < len(queues):
            bug.strike()
            queues = [queue for queue in queues if queue in own]
        return queues, by_headers

    for user in (publishing, copies):
        bug.replace(user, "route", route)


@mutation("G2")
def an_exchange_that_is_gone_is_still_bound(bug: Bug) -> None:
    """The deletion of an exchange leaves the bindings of others to it in force, in the records that are kept."""

    def end_bindings_to(self: TopologyImage, end: int | tuple[str, str]) -> None:
        if not isinstance(end, int) and self._bound.of(end):
            bug.strike()
            return
        real(self, end)

    real = TopologyImage._end_bindings_to
    bug.replace(TopologyImage, "_end_bindings_to", end_bindings_to)


@mutation("G2")
def a_base_forgets_bindings_of_exchanges(bug: Bug) -> None:
    """Checkpoints and bases of a catch-up have the bindings of queues alone."""

    def of(cls: type[Meta], state: BrokerState, *, whole_log: bool = False) -> Meta:
        meta: Meta = real(cls, state, whole_log=whole_log)
        kept = tuple(raw for raw in meta.topology if raw[0] != record.EXCHANGE_BIND)
        bug.strikes += len(kept) < len(meta.topology)
        return attrs.evolve(meta, topology=kept)

    real = vars(Meta)["of"].__func__
    bug.replace(Meta, "of", classmethod(of))


@mutation("G2")
def a_refill_forgets_bindings_of_exchanges(bug: Bug) -> None:
    """A refill brings the bindings of queues alone."""

    class Binds:
        def __contains__(self, kind: int) -> bool:
            bug.strikes += kind == record.EXCHANGE_BIND
            return kind == record.BIND

    bug.replace(catch_up, "BINDS", Binds())
