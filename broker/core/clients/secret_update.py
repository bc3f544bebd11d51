"""``connection.update-secret``: a client shows the new password of its user.

RabbitMQ looks at the secret of users whose credentials can change while a connection lives, and answers any other unseen. Here
that is a user whose password has changed since the connection has shown one (``secret_due``). The secret is verified like the
password of a login, beside the event loop; the connection goes on meanwhile. A wrong secret ends the connection (530).

Source: RabbitMQ 4.3, ``rabbit_reader`` (``connection.update_secret``), ``rabbit_access_control:update_state/2``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from understudy.broker.amqp.methods import BASIC_CANCEL, CONNECTION_UPDATE_SECRET, CONNECTION_UPDATE_SECRET_OK
from understudy.broker.core.clients.direct_reply import is_reply_name
from understudy.broker.errors import AccessRefusedError, AmqpError, CommandInvalidError, NotAllowedError

if TYPE_CHECKING:
    from understudy.broker.core.clients.connection import Connection
    from understudy.broker.core.clients.login import Login
    from understudy.broker.security import User


def update_secret(connection: Connection, login: Login, secret: bytes) -> None:
    """Verify ``secret`` for the user of a connection that is open, if that has another password than before.

    Raises:
        CommandInvalidError: the answer to an earlier update-secret is due.
    """
    if connection.secret_waits:
        raise CommandInvalidError("connection.update-secret before the answer to the one before")
    assert connection.user is not None
    if not connection.secret_due:
        connection.send(0, CONNECTION_UPDATE_SECRET_OK)
        return
    connection.verify_secret()
    password = secret.decode("utf-8", "replace")
    login.verify(connection.user.name, password, partial(_verified, connection), lambda: connection.secret_waits)


def _verified(connection: Connection, user: User | AmqpError) -> None:
    if connection.secret_waits:  # else it is closed
        connection.secret_verified()
        connection.guard(0, CONNECTION_UPDATE_SECRET, _take, connection, user)


def _take(connection: Connection, user: User | AmqpError) -> None:
    """Go on with ``user``, or with the reason why the secret was refused."""
    if isinstance(user, AccessRefusedError):
        raise NotAllowedError(f"new secret was refused: {user.text}")
    if isinstance(user, AmqpError):
        raise user
    renew_user(connection, user)
    connection.secret_shown()
    connection.send(0, CONNECTION_UPDATE_SECRET_OK)


def renew_user(connection: Connection, user: User) -> None:
    """Give an open connection its user with other rights. Consumers of queues that the user may not read are cancelled.

    Raises:
        NotAllowedError: the user may not be in the connection's vhost.
    """
    user.require_vhost(connection.vhost)
    connection.serve_as(user)
    connection.renew_routes(connection.routes_version)  # found with the rights of the user before
    for channel in connection.channels.values():
        for consumer in list(channel.consuming.consumers.values()):
            name = consumer.queue.name
            if is_reply_name(name) or user.may(connection.vhost, "read", name):
                continue
            channel.consuming.remove(consumer)
            if connection.wants_cancel_notify and not channel.closing:
                channel.send(BASIC_CANCEL, consumer.tag, True)
