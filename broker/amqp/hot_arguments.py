"""The arguments of basic.publish and basic.deliver, by hand and remembered.

A publisher says the same exchange and routing key with every message, a queue delivers to the same consumer tag. What
such octets mean is looked up here by the octets themselves: 0.1 us, against 1.7 by the layout, and all equal names
become one `str` object whose hash is known, which serves the routing after it.

The caches are shared by all connections, many of which use the same few routes, and bounded: `CACHE_ENTRIES` of at most
515 octets each. A full cache is emptied; to keep an order of use would cost every hit. They change no result, hence no
run of the simulator.

Whatever looks odd is left to the layout in `methods.py`, which reads it or finds the words for what is wrong.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, TypeVar

from understudy.broker.amqp.methods import decode_method

CACHE_ENTRIES: Final = 4096

ROUTES: Final[dict[bytes, tuple[Any, ...]]] = {}
"""Octets of the arguments of a basic.publish -> the arguments. `frames.py` looks here itself before it calls `publish_args`."""

_exchanges: Final[dict[bytes, str]] = {}
_consumer_tags: Final[dict[bytes, str]] = {}
_delivery_routes: Final[dict[bytes, tuple[Any, ...]]] = {}

_u64: Final = Struct(">Q").unpack_from
_Meaning = TypeVar("_Meaning")


def publish_args(buf: bytes, at: int, stop: int) -> tuple[Any, ...]:
    """Return (exchange, routing key, mandatory, immediate) of a basic.publish that is not in `ROUTES`, and put it there.

    Args:
        buf: holds the whole method frame.
        at: where the frame begins.
        stop: where its end octet is.

    Raises:
        MalformedFrameError: as `decode_method`.
    """
    octets = buf[at + 11 : stop]
    # Also by hand, for the publisher whose routing keys are all different.
    exchange_end = 3 + octets[2] if len(octets) > 2 else 3
    if exchange_end < len(octets) and len(octets) == exchange_end + octets[exchange_end] + 2:
        exchange = _exchanges.get(octets[3:exchange_end])
        if exchange is not None:
            bits = octets[-1]
            try:
                args = (exchange, octets[exchange_end + 1 : -1].decode(), bits & 1 == 1, bits & 2 == 2)
            except UnicodeDecodeError:
                pass
            else:
                _remember(ROUTES, octets, args)
                return args
    args = decode_method(buf[at + 7 : stop])[1]
    _remember(_exchanges, octets[3 : 3 + octets[2]], args[0])
    _remember(ROUTES, octets, args)
    return args


def deliver_args(buf: bytes, at: int, stop: int) -> tuple[Any, ...]:
    """Return (consumer tag, delivery tag, redelivered, exchange, routing key) of the basic.deliver in ``buf[at : stop + 1]``.

    Raises:
        MalformedFrameError: as `decode_method`.
    """
    start = at + 11
    tag_end = start + 1 + buf[start]
    if tag_end + 8 < stop:
        consumer_tag = _consumer_tags.get(buf[start:tag_end])
        route = _delivery_routes.get(buf[tag_end + 8 : stop])
        if consumer_tag is not None and route is not None:
            return (consumer_tag, _u64(buf, tag_end)[0], *route)
    args = decode_method(buf[at + 7 : stop])[1]
    _remember(_consumer_tags, buf[start:tag_end], args[0])
    _remember(_delivery_routes, buf[tag_end + 8 : stop], args[2:])
    return args


def _remember(cache: dict[bytes, _Meaning], octets: bytes, meaning: _Meaning) -> None:
    if len(cache) >= CACHE_ENTRIES:
        cache.clear()
    cache[octets] = meaning
