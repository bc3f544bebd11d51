"""Arguments of exchange.declare: the type as which a delaying exchange routes, and which duplicates are dropped."""

from __future__ import annotations

from typing import Any, Final

from understudy.broker.core.queues import deduplication, queue_arguments
from understudy.broker.core.queues.queue_arguments import CHECKS, check_deduplication, shown
from understudy.broker.core.topology.exchanges import DELAYED_MESSAGE, DELAYED_TYPE, EXCHANGE_TYPES, exchange_class
from understudy.broker.errors import PreconditionFailedError

FROM_FORMAT_5: Final = queue_arguments.FROM_FORMAT_5 | {DELAYED_TYPE}
"""Arguments of queues and exchanges that programs of older formats do not heed."""


def check_exchange(name: str, vhost: str, kind: str, arguments: dict[str, Any]) -> None:
    """Check the arguments of an exchange of type ``kind`` that is to be declared, but for its alternate.

    Raises:
        PreconditionFailedError: as of a queue.
    """
    for argument, value in arguments.items():
        if not argument.startswith("x-"):
            continue
        if argument == DELAYED_TYPE and kind == DELAYED_MESSAGE:
            continue
        if argument not in deduplication.ARGUMENTS:
            raise PreconditionFailedError(
                f"argument '{argument}' of exchange '{name}' in vhost '{vhost}' is not supported"
            )
        wrong = CHECKS[argument](value)
        if wrong:
            raise PreconditionFailedError(
                f"invalid arg '{argument}' for exchange '{name}' in vhost '{vhost}': {shown(value)} {wrong}"
            )
    check_deduplication("exchange", name, vhost, arguments)
    if kind == DELAYED_MESSAGE and exchange_class(kind, arguments) is None:
        raise PreconditionFailedError(
            f"invalid arg '{DELAYED_TYPE}' for exchange '{name}' in vhost '{vhost}': {arguments.get(DELAYED_TYPE)!r} is none of "
            f"{', '.join(EXCHANGE_TYPES)}, as which one of type '{kind}' may route"
        )
