"""Exchanges and queues by name: declare, bind, purge, delete. AMQP 0-9-1 section 3.1, with RabbitMQ's texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.broker.amqp.field_table import encode_table
from understudy.broker.amqp.methods import (
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    EXCHANGE_DELETE,
    EXCHANGE_DELETE_OK,
    QUEUE_BIND,
    QUEUE_BIND_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    QUEUE_DELETE,
    QUEUE_DELETE_OK,
    QUEUE_PURGE,
    QUEUE_PURGE_OK,
    QUEUE_UNBIND,
    QUEUE_UNBIND_OK,
)
from understudy.broker.core.clients import direct_reply
from understudy.broker.core.clients.exchange_bindings import ExchangeBindings
from understudy.broker.core.clients.names import BROKERS_PREFIX, MAX_NAME_BYTES, Names, one_line
from understudy.broker.core.queues import deduplication
from understudy.broker.core.queues.dead_letters import EXCHANGE as DEAD_LETTER_EXCHANGE
from understudy.broker.core.queues.queue_arguments import (
    COMPARED,
    check_arguments,
    check_type,
)
from understudy.broker.core.queues.replication_level import REPLICATE, level_asked_for, level_of
from understudy.broker.core.topology.argument_values import binding_octets, same_value
from understudy.broker.core.topology.exchange_arguments import FROM_FORMAT_5, check_exchange
from understudy.broker.core.topology.exchange_deletion import delete_exchange, delete_unbound
from understudy.broker.core.topology.exchanges import (
    ALTERNATE,
    DELAYED_MESSAGE,
    DELAYED_TYPE,
    EXCHANGE_TYPES,
    Binding,
    BindingKey,
    Exchange,
)
from understudy.broker.errors import (
    AccessRefusedError,
    NotFoundError,
    PreconditionFailedError,
    ResourceLockedError,
)
from understudy.broker.log import record

if TYPE_CHECKING:
    from understudy.broker.core.clients.channel import Handler
    from understudy.broker.core.queues.queue import Queue


class Naming(Names):
    """The methods of the classes exchange and queue on one channel."""

    def handlers(self) -> dict[int, Handler]:
        return {
            EXCHANGE_DECLARE: self._declare_exchange,
            EXCHANGE_DELETE: self._delete_exchange,
            **ExchangeBindings(self._channel).handlers(),
            QUEUE_DECLARE: self._declare_queue,
            QUEUE_BIND: self._bind,
            QUEUE_UNBIND: self._unbind,
            QUEUE_PURGE: self._purge,
            QUEUE_DELETE: self._delete,
        }

    # -- looking up -----------------------------------------------------------------------------------------------

    def queue_for(self, name: str, action: str) -> Queue:
        """The queue of that name ("" means the one declared last on this channel), if the user may ``action`` it."""
        name = self._name_or_last(name)
        queue = self._registry.vhost(self._connection.vhost).queues.get(name)
        if queue is None:
            raise self._no_queue(name)
        self._require(action, "queue", name)
        self._check_owner(queue)
        return queue

    def _no_queue(self, name: str) -> NotFoundError | AccessRefusedError:
        """The error for a missing queue; for a name that is reserved, that the client may not use it."""
        if name.startswith(BROKERS_PREFIX):
            return AccessRefusedError.reserved_name("queue", name, BROKERS_PREFIX)
        return NotFoundError.queue(name, self._connection.vhost)

    def _name_or_last(self, name: str) -> str:
        if name:
            return name
        if not self._channel.last_queue:
            raise NotFoundError("no previously declared queue")
        return self._channel.last_queue

    def _check_owner(self, queue: Queue) -> None:
        if queue.owner is not None and queue.owner is not self._connection:
            raise ResourceLockedError.queue(queue.name, queue.vhost)

    # -- exchanges ------------------------------------------------------------------------------------------------

    def _declare_exchange(self, args: tuple[Any, ...]) -> None:
        name, kind, passive, durable, auto_delete, internal, no_wait, arguments = args
        name = one_line(name)
        vhost = self._connection.vhost
        if name == "":
            raise AccessRefusedError("operation not permitted on the default exchange")
        existing = self._registry.vhost(vhost).exchanges.get(name)
        if existing is not None:
            self._broker.expiry.declared_anew(existing)
        if passive:
            if existing is None:
                raise NotFoundError.exchange(name, vhost)
            self._answer(no_wait, EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK)
            return
        self._require("configure", "exchange", name)
        if kind not in (*EXCHANGE_TYPES, DELAYED_MESSAGE):
            # AMQP 0-9-1 has 503 here, which ends the connection; RabbitMQ 4 has 406.
            raise PreconditionFailedError(f"exchange '{name}' in vhost '{vhost}': unknown exchange type '{kind}'")
        if existing is not None:
            for what, received, current in (
                ("type", kind, existing.kind),
                ("durable", durable, existing.durable),
                ("auto_delete", auto_delete, existing.auto_delete),
                ("internal", internal, existing.internal),
                *(
                    (each, arguments.get(each), existing.arguments.get(each))
                    for each in (ALTERNATE, DELAYED_TYPE, *deduplication.ARGUMENTS)
                ),
            ):
                if not same_value(received, current):
                    raise PreconditionFailedError.inequivalent_arg("exchange", name, vhost, what, received, current)
        else:
            self._check_name("exchange", name)
            check_exchange(name, vhost, kind, arguments)
            if self._waits_for_format(EXCHANGE_DECLARE, arguments, self._declare_exchange, args):
                return
            self._check_format("exchange", name, arguments)
            self._check_alternate(name, arguments)
            flags = (
                (record.DURABLE if durable else 0)
                | (record.AUTO_DELETE if auto_delete else 0)
                | (record.INTERNAL if internal else 0)
            )
            self._broker.batch.append_record(
                record.encode_exchange_declare(vhost, name, kind, flags, encode_table(arguments))
            )
        self._answer(no_wait, EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK)

    def _check_alternate(self, name: str, arguments: dict[str, Any]) -> None:
        """As in RabbitMQ, the alternate need not be there yet, and whoever names it must be allowed to use both."""
        if ALTERNATE not in arguments:
            return
        alternate = arguments[ALTERNATE]
        # What is no UTF-8 is no exchange's name; in a table it is a string nevertheless.
        octets = alternate.encode("utf-8", "replace") if isinstance(alternate, str) else b""
        if octets.decode() != alternate or not 1 <= len(octets) <= MAX_NAME_BYTES:
            raise PreconditionFailedError(
                f"invalid arg '{ALTERNATE}' for exchange '{name}' in vhost '{self._connection.vhost}': {alternate!r} is not the "
                "name of an exchange"
            )
        self._require("read", "exchange", name)
        self._require("write", "exchange", alternate)

    def _delete_exchange(self, args: tuple[Any, ...]) -> None:
        name, if_unused, no_wait = args
        name = one_line(name)
        vhost = self._connection.vhost
        if name == "":
            raise AccessRefusedError("operation not permitted on the default exchange")
        self._check_name("exchange", name)
        existing = self._registry.vhost(vhost).exchanges.get(name)
        self._require("configure", "exchange", name)
        if existing is not None:
            if if_unused and existing.bindings:
                raise PreconditionFailedError.in_use("exchange", name, vhost)
            delete_exchange(self._broker.state.topology.registry, self._broker.batch.append_record, existing)
        self._answer(no_wait, EXCHANGE_DELETE, EXCHANGE_DELETE_OK)

    # -- queues ---------------------------------------------------------------------------------------------------

    def _declare_queue(self, args: tuple[Any, ...]) -> None:
        name, passive, durable, exclusive, auto_delete, no_wait, arguments = args
        name = one_line(name)
        broker = self._broker
        vhost = self._connection.vhost
        if direct_reply.is_reply_name(name):
            self._channel.direct_reply.check_declared(name)
            self._channel.declared(name)
            if not no_wait:
                self._channel.send(QUEUE_DECLARE_OK, name, 0, 1)
            return
        if passive:
            queue = self._passive(name)
        else:
            named = bool(name)
            if not named:
                name = "amq.gen-" + broker.random_bytes(16).hex()
                existing = None
            else:
                existing = self._registry.vhost(vhost).queues.get(name)
            self._require("configure", "queue", name)
            if existing is not None:
                queue = existing
                self._check_owner(queue)
                self._check_same(queue, durable, exclusive, auto_delete, arguments)
                queue.used(broker.clock.running_ms)
            else:
                if named:
                    self._check_name("queue", name)
                check_arguments(name, vhost, arguments)
                if self._waits_for_format(QUEUE_DECLARE, arguments, self._declare_queue, args):
                    return
                self._check_moves(name, arguments)
                said = level_asked_for(name, vhost, arguments, durable=durable, exclusive=exclusive)
                owner = self._connection if exclusive else None
                queue = broker.declarations.declare(
                    vhost,
                    name,
                    durable=durable,
                    auto_delete=auto_delete,
                    arguments=arguments,
                    level=level_of(said, broker.declarations.default_level, durable=durable, exclusive=exclusive),
                    owner=owner,
                )
                if owner is not None:
                    self._connection.exclusive_queues.append(queue)
        self._channel.declared(queue.name)
        if not no_wait:
            self._channel.answer_when_stable(self._stable_at(queue), QUEUE_DECLARE, lambda: self._declared(queue))

    def _check_moves(self, name: str, arguments: dict[str, Any]) -> None:
        """Check that a queue may have a dead-letter exchange, limits or priorities.

        As in RabbitMQ its client must be allowed to use queue and exchange.

        Raises:
            PreconditionFailedError: a broker of the group is of a version that cannot read the records of such a queue.
        """
        self._check_format("queue", name, arguments)
        exchange = arguments.get(DEAD_LETTER_EXCHANGE)
        if exchange is not None:
            self._require("read", "queue", name)
            self._require("write", "exchange", exchange)

    def _waits_for_format(self, key: int, arguments: dict[str, Any], action: Handler, args: tuple[Any, ...]) -> bool:
        """True if method ``key`` is carried out later, since this broker does not know yet if its group reads ``arguments``."""
        return not FROM_FORMAT_5.isdisjoint(arguments) and self._waits_for_group(key, record.MOVE, action, args)

    def _check_format(self, kind: str, name: str, arguments: dict[str, Any]) -> None:
        asked = [argument for argument in arguments if argument in FROM_FORMAT_5]
        if asked and not self._broker.log.may_hold(record.MOVE):
            raise PreconditionFailedError(
                f"argument '{asked[0]}' of {kind} '{name}' in vhost '{self._connection.vhost}' takes format "
                f"{record.MOVES_VERSION} of the log, which not all brokers of the group read yet: upgrade them first"
            )

    def _declared(self, queue: Queue) -> None:
        self._broker.look_into(queue)
        self._channel.send(QUEUE_DECLARE_OK, queue.name, queue.depth, len(queue.consumers))

    def _passive(self, name: str) -> Queue:
        name = self._name_or_last(name)
        queue = self._registry.vhost(self._connection.vhost).queues.get(name)
        if queue is None:
            raise self._no_queue(name)
        self._check_owner(queue)
        queue.used(self._broker.clock.running_ms)
        return queue

    def _check_same(
        self, queue: Queue, durable: bool, exclusive: bool, auto_delete: bool, arguments: dict[str, Any]
    ) -> None:
        if exclusive != (queue.owner is not None):
            raise ResourceLockedError.queue(queue.name, queue.vhost)
        check_type(queue.name, queue.vhost, arguments)
        for what, received, current in (
            ("durable", durable, queue.durable),
            ("auto_delete", auto_delete, queue.auto_delete),
            *((each, arguments.get(each), queue.arguments.get(each)) for each in COMPARED),
        ):
            if not same_value(received, current):
                raise PreconditionFailedError.inequivalent_arg(
                    "queue", queue.name, queue.vhost, what, received, current
                )
        self._check_same_level(queue, durable, exclusive, arguments)

    def _check_same_level(self, queue: Queue, durable: bool, exclusive: bool, arguments: dict[str, Any]) -> None:
        """Check the level: a declaration that names none, as the first did, means the first one's, under any default of now."""
        if arguments.get(REPLICATE) == queue.arguments.get(REPLICATE):
            return
        said = level_asked_for(queue.name, queue.vhost, arguments, durable=durable, exclusive=exclusive)
        level = level_of(said, self._broker.declarations.default_level, durable=durable, exclusive=exclusive)
        if level is not queue.level:
            raise PreconditionFailedError.inequivalent_arg(
                "queue", queue.name, queue.vhost, REPLICATE, level.value, queue.level.value
            )

    def _bind(self, args: tuple[Any, ...]) -> None:
        name, exchange, routing_key, no_wait, arguments = args
        name, exchange = one_line(name), one_line(exchange)
        direct_reply.check_bindable(name)
        queue = self.queue_for(name, "write")
        if exchange == "":
            raise AccessRefusedError("operation not permitted on the default exchange")
        found = self._exchange(exchange)
        self._require("read", "exchange", exchange)
        self._check_match(found, arguments)
        if not name and not routing_key:
            routing_key = queue.name  # AMQP 0-9-1, queue.bind: the default queue's name is its routing key then
        if self._bound_key(found, queue, routing_key, arguments) is None:
            self._broker.expiry.note_binding(found)
            binding = Binding(queue, routing_key, arguments, binding_octets(arguments))
            if queue.level.declared_in_log:
                self._broker.batch.append_record(
                    record.encode_bind(
                        False,
                        queue.vhost,
                        exchange,
                        queue.id,
                        routing_key,
                        binding.raw_arguments,
                        queue.durable and found.durable,
                    )
                )
            else:
                self._registry.bind(queue.vhost, exchange, binding)
        self._answer(no_wait, QUEUE_BIND, QUEUE_BIND_OK, queue=queue)

    def _unbind(self, args: tuple[Any, ...]) -> None:
        name, exchange, routing_key, arguments = args
        name, exchange = self._name_or_last(one_line(name)), one_line(exchange)
        direct_reply.check_bindable(name)
        self._check_ends((("queue", name, "write"), ("exchange", exchange, "read")))
        vhost = self._registry.vhost(self._connection.vhost)
        queue, found = vhost.queues.get(name), vhost.exchanges.get(exchange)
        if queue is None and name.startswith(BROKERS_PREFIX):
            raise self._no_queue(name)
        if queue is not None and found is not None:
            key = self._bound_key(found, queue, routing_key, arguments)
            if key is not None:
                self._check_owner(queue)
                self._remove_binding(queue, found, key)
        self._answer(False, QUEUE_UNBIND, QUEUE_UNBIND_OK, queue=queue)

    @staticmethod
    def _bound_key(exchange: Exchange, queue: Queue, routing_key: str, arguments: dict[str, Any]) -> BindingKey | None:
        """The key of the binding with these arguments, in whatever order; None if there is none.

        Bindings of older logs have their arguments in the order in which a client sent them.
        """
        for octets in (binding_octets(arguments), encode_table(arguments)):
            if (queue.id, routing_key, octets) in exchange.bindings:
                return queue.id, routing_key, octets
        return None

    def _remove_binding(self, queue: Queue, exchange: Exchange, key: BindingKey) -> None:
        """Remove a binding that is there; an auto-delete exchange goes with its last one."""
        if queue.level.declared_in_log:
            durable = queue.durable and exchange.durable
            self._broker.batch.append_record(
                record.encode_bind(True, queue.vhost, exchange.name, queue.id, key[1], key[2], durable)
            )
        else:
            self._registry.unbind(queue.vhost, exchange.name, key)
        delete_unbound(self._broker.state.topology.registry, self._broker.batch.append_record, [exchange])

    def _purge(self, args: tuple[Any, ...]) -> None:
        name, no_wait = args
        self._channel.after_own_publishes(
            QUEUE_PURGE, self._purge_queue, self._name_or_last(name), no_wait, outlives=True
        )

    def _purge_queue(self, name: str, no_wait: bool) -> None:
        queue = self.queue_for(name, "read")
        self._broker.look_into(queue)
        count, purge = self._broker.moving.purging.purge(queue)
        if purge is None or no_wait:
            self._answer(no_wait, QUEUE_PURGE, QUEUE_PURGE_OK, count, queue=queue)
            return
        channel = self._channel
        awaited = channel.hold(QUEUE_PURGE)
        purge.on_end(
            lambda: channel.answered(
                lambda: self._answer(False, QUEUE_PURGE, QUEUE_PURGE_OK, count, queue=queue), awaited
            )
        )

    def _delete(self, args: tuple[Any, ...]) -> None:
        name, *how = args
        self._channel.after_own_publishes(
            QUEUE_DELETE, self._delete_queue, self._name_or_last(one_line(name)), *how, outlives=True
        )

    def _delete_queue(self, name: str, if_unused: bool, if_empty: bool, no_wait: bool) -> None:
        vhost = self._connection.vhost
        if name not in self._registry.vhost(vhost).queues:
            # RabbitMQ's choice: deleting what is not there succeeds.
            if name.startswith(BROKERS_PREFIX):
                raise self._no_queue(name)
            self._answer(no_wait, QUEUE_DELETE, QUEUE_DELETE_OK, 0)
            return
        queue = self.queue_for(name, "configure")
        self._broker.look_into(queue)
        if if_unused and queue.consumers:
            raise PreconditionFailedError.in_use("queue", name, vhost)
        if if_empty and (
            queue.depth
            or queue.withheld
            or queue.returning
            or self._broker.comes(queue)
            or self._broker.state.takes_in_doubt(queue)
            or queue in self._broker.moving.waiting
        ):
            raise PreconditionFailedError.not_empty(name, vhost)
        count = self._broker.delete_queue(queue)
        self._answer(no_wait, QUEUE_DELETE, QUEUE_DELETE_OK, count, queue=queue)
