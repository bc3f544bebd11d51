"""Reserved exchanges: a message to one of them is a request to the broker itself.

A request is never part of a transaction or of a branch, goes to no queue, and is refused before anything is done: without the
permission (403), without ``reply-to`` or with a body that is none (406). On a channel in confirm mode its confirm says that the
request was taken, not that it was carried out. The answer says that (``reply.py``).

No client can declare or bind an exchange of such a name: `names.BROKERS_PREFIX`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs

from understudy.broker.core.requests.admin import ADMIN_EXCHANGE, take_admin_command
from understudy.broker.core.requests.dtx_messages import DTX_EXCHANGE, take_dtx_message
from understudy.broker.core.requests.reply import Reply
from understudy.broker.transactions.outcome_query import OUTCOME_EXCHANGE

if TYPE_CHECKING:
    from understudy.broker.core.requests.port import RequestChannel
    from understudy.broker.security import User

Permission = Callable[["User", str], None]
"""Raises AccessRefusedError unless the user may send requests in the vhost."""


def may_answer_anywhere(user: User, vhost: str) -> None:
    """The answer goes to any queue that the request names, as through the default exchange."""
    user.require(vhost, "write", "exchange", "")


@attrs.frozen
class ReservedExchange:
    """The function and the permission behind one name.

    Attributes:
        take: carries a request out, or begins to; the channel takes nothing more while it waits (`Channel.awaiting`).
        permission: asked first. What a request needs beside it is asked by ``take``.
    """

    name: str
    take: Callable[[RequestChannel, Reply, bytes], None]
    permission: Permission = may_answer_anywhere


def _ask_outcome(channel: RequestChannel, reply: Reply, body: bytes) -> None:
    channel.transacting.query(reply, body)


RESERVED_EXCHANGES: Final = {
    each.name: each
    for each in (
        ReservedExchange(OUTCOME_EXCHANGE, _ask_outcome),
        ReservedExchange(DTX_EXCHANGE, take_dtx_message),
        ReservedExchange(ADMIN_EXCHANGE, take_admin_command),
    )
}
