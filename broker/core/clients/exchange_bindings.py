"""exchange.bind and exchange.unbind: RabbitMQ's extension of AMQP 0-9-1, with its texts.

Refused beyond what RabbitMQ refuses: an exchange bound to itself, and a destination that delays messages or drops duplicates
(`docs/amqp.md`, Bindings between exchanges).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.broker.amqp.methods import EXCHANGE_BIND, EXCHANGE_BIND_OK, EXCHANGE_UNBIND, EXCHANGE_UNBIND_OK
from understudy.broker.core.clients.names import Names, one_line
from understudy.broker.core.topology.argument_values import binding_octets
from understudy.broker.core.topology.exchange_deletion import delete_unbound
from understudy.broker.errors import PreconditionFailedError
from understudy.broker.log import record
from understudy.broker.log.exchange_bind_record import encode_exchange_bind

if TYPE_CHECKING:
    from understudy.broker.core.clients.channel import Handler
    from understudy.broker.core.topology.exchanges import Exchange


class ExchangeBindings(Names):
    """The two methods on one channel."""

    def handlers(self) -> dict[int, Handler]:
        return {
            EXCHANGE_BIND: lambda args: self._carry_out(EXCHANGE_BIND, self._bind, args),
            EXCHANGE_UNBIND: lambda args: self._carry_out(EXCHANGE_UNBIND, self._unbind, args),
        }

    def _carry_out(self, key: int, action: Handler, args: tuple[Any, ...]) -> None:
        if not self._waits_for_group(key, record.EXCHANGE_UNBIND, action, args):
            action(args)

    def _bind(self, args: tuple[Any, ...]) -> None:
        destination, source, routing_key, no_wait, arguments = args
        destination, source = one_line(destination), one_line(source)
        self._check_ends((("exchange", destination, "write"), ("exchange", source, "read")))
        start, end = self._exchange(source), self._exchange(destination)
        self._check_match(start, arguments)
        self._check_destination(start, end)
        self._broker.expiry.declared_anew(end)
        octets = binding_octets(arguments)
        if (destination, routing_key, octets) not in start.bindings:
            self._check_format(start, end)
            self._broker.expiry.note_binding(start)
            self._append(False, start, end, routing_key, octets)
        self._answer(no_wait, EXCHANGE_BIND, EXCHANGE_BIND_OK)

    def _unbind(self, args: tuple[Any, ...]) -> None:
        destination, source, routing_key, no_wait, arguments = args
        destination, source = one_line(destination), one_line(source)
        self._check_ends((("exchange", destination, "write"), ("exchange", source, "read")))
        exchanges = self._registry.vhost(self._connection.vhost).exchanges
        start, end = exchanges.get(source), exchanges.get(destination)
        octets = binding_octets(arguments)
        if start is not None and end is not None and (destination, routing_key, octets) in start.bindings:
            self._check_format(start, end)
            self._append(True, start, end, routing_key, octets)
            delete_unbound(self._broker.state.topology.registry, self._broker.batch.append_record, [start])
        self._answer(no_wait, EXCHANGE_UNBIND, EXCHANGE_UNBIND_OK)

    def _check_destination(self, start: Exchange, end: Exchange) -> None:
        if start is end:
            raise PreconditionFailedError(
                f"exchange '{end.name}' in vhost '{end.vhost}' cannot be bound to itself: no message would come to it by that"
            )
        reason = (
            "it delays only what is published to it"
            if end.delays
            else "it knows duplicates only of what is published to it"
            if end.deduplication is not None
            else ""
        )
        if reason:
            raise PreconditionFailedError(
                f"exchange '{end.name}' in vhost '{end.vhost}' cannot be bound to exchange '{start.name}': {reason}"
            )

    def _check_format(self, start: Exchange, end: Exchange) -> None:
        """Raises if a broker of the group is of a version that cannot read the record."""
        if not self._broker.log.may_hold(record.EXCHANGE_UNBIND):
            raise PreconditionFailedError(
                f"a binding of exchange '{end.name}' to exchange '{start.name}' in vhost '{end.vhost}' takes format "
                f"{record.EXCHANGE_BINDINGS_VERSION} of the log, which not all brokers of the group read yet: upgrade them first"
            )

    def _append(self, remove: bool, start: Exchange, end: Exchange, routing_key: str, octets: bytes) -> None:
        durable = start.durable and end.durable
        self._broker.batch.append_record(
            encode_exchange_bind(remove, start.vhost, start.name, end.name, routing_key, octets, durable)
        )
