"""Names: what the methods that declare, bind, purge and delete share: looking up, permissions, answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from understudy.broker.core.topology.exchanges import Exchange
from understudy.broker.errors import AccessRefusedError, NotFoundError, PreconditionFailedError

if TYPE_CHECKING:
    from understudy.broker.core.clients.channel import Channel, Handler
    from understudy.broker.core.queues.queue import Queue

BROKERS_PREFIX = "understudy."
"""Names of the broker's own: of tx-queues, which are no queues that a client could find, and of where questions are asked."""
RESERVED_PREFIXES = ("amq.", BROKERS_PREFIX)
MAX_NAME_BYTES = 255
"""Of a short string (AMQP 0-9-1 section 4.2.5.3)."""


def one_line(name: str) -> str:
    """``name`` without CR and LF, as RabbitMQ takes names that are declared, bound or deleted."""
    return name.replace("\n", "").replace("\r", "") if "\n" in name or "\r" in name else name


class Names:
    """Base of those who have such methods of one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._connection = channel.connection
        self._broker = channel.broker
        self._registry = channel.broker.state.topology.registry

    def _require(self, action: str, kind: str, name: str) -> None:
        user = self._connection.user
        assert user is not None
        user.require(self._connection.vhost, action, kind, name)  # type: ignore[arg-type]

    def _exchange(self, name: str) -> Exchange:
        found = self._registry.vhost(self._connection.vhost).exchanges.get(name)
        if found is None:
            raise NotFoundError.exchange(name, self._connection.vhost)
        return found

    @staticmethod
    def _check_name(kind: str, name: str) -> None:
        for prefix in RESERVED_PREFIXES:
            if name.startswith(prefix):
                raise AccessRefusedError.reserved_name(kind, name, prefix)

    def _check_ends(self, things: Iterable[tuple[str, str, str]]) -> None:
        """Raises what keeps the user from binding or unbinding these (kind, name, action). They need not be there."""
        for kind, name, action in things:
            if kind == "exchange" and name == "":
                raise AccessRefusedError("operation not permitted on the default exchange")
            self._require(action, kind, name)

    @staticmethod
    def _check_match(exchange: Exchange, arguments: dict[str, Any]) -> None:
        """Raises what is wrong with the arguments of a binding of ``exchange``."""
        if exchange.needs_headers:
            match = arguments.get("x-match", "all")
            if match not in ("all", "any", "all-with-x", "any-with-x"):
                raise PreconditionFailedError(f"invalid x-match field value {match!r}; expected all or any")

    def _waits_for_group(self, key: int, kind: int, action: Handler, args: tuple[Any, ...]) -> bool:
        """True if method ``key``, which may append a record of ``kind``, is carried out when this broker answers.

        A broker that begins to lead writes the oldest format until its group has linked. A refusal before that
        would tell a client to upgrade brokers that are not old.
        """
        if self._broker.role.answering or self._broker.log.may_hold(kind):
            return False
        self._channel.carry_out_when_applied(key, action, args)
        return True

    def _answer(self, no_wait: bool, method: int, key: int, *args: Any, queue: Queue | None = None) -> None:
        """Answer when everything logged so far is stable, and no other broker leads; of a ``queue`` of this one alone, it may."""
        if no_wait:
            return
        self._channel.answer_when_stable(self._stable_at(queue), method, lambda: self._channel.send(key, *args))

    def _stable_at(self, queue: Queue | None) -> int:
        broker = self._broker
        return broker.batch.provable() if queue is None or queue.level.declared_in_log else broker.log.end
