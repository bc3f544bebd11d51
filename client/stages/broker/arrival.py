"""Arrival: a delivery as the decisions see it, with headers that can be sent again."""

from __future__ import annotations

import math
import uuid
from decimal import Decimal
from typing import Any, Final

import attrs
from aiormq.abc import DeliveredMessage

from understudy.client.stages.core.envelope import TO, Delivery

LARGEST_FLOAT: Final = 3.4028234663852886e38
"""Of 32 bits, as pamqp writes a float."""
LARGEST_UNSCALED: Final = (1 << 31) - 1
"""Of a decimal without its point, as pamqp writes one; it reads larger ones."""


@attrs.frozen
class Arrival:
    """A delivery, and the tag that acknowledges it on its channel."""

    tag: int
    delivery: Delivery


def arrival_of(message: DeliveredMessage) -> Arrival:
    """A delivery as the decisions see it."""
    deliver: Any = message.delivery
    properties = message.header.properties
    headers: dict[str, Any] = {name: sendable(value) for name, value in (properties.headers or {}).items()}
    return Arrival(
        tag=deliver.delivery_tag,
        delivery=Delivery(
            id=properties.message_id or uuid.uuid4().hex,
            anonymous=not properties.message_id,
            stage=str(headers.get(TO, "")),
            body=bytes(message.body),
            headers=headers,
            redelivered=bool(deliver.redelivered),
        ),
    )


def sendable(value: Any) -> Any:
    """A header's value as the client library can send it again: it reads values that it cannot write."""
    if isinstance(value, bytes):
        return bytearray(value)  # a text that is no UTF-8
    if isinstance(value, Decimal) and abs(value.scaleb(-min(0, int(value.as_tuple().exponent)))) > LARGEST_UNSCALED:
        return str(value)
    if isinstance(value, float) and not math.isinf(value) and abs(value) > LARGEST_FLOAT:
        return repr(value)
    if isinstance(value, dict):
        return {name: sendable(each) for name, each in value.items()}
    return [sendable(each) for each in value] if isinstance(value, list) else value
