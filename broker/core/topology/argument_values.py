"""Equality of values in AMQP tables, as RabbitMQ 4.3 compares them.

A headers exchange compares headers with a binding's arguments. A declaration of a name that is there compares its arguments.

RabbitMQ compares what a value holds, without the code that it has on the wire. So these are equal:

    integers of any width                   5 as an octet and 5 in 64 bits
    floating-point numbers of any width     0.5 in 32 bits and 0.5 in 64 bits
    text and octets of the same bytes       "a" and b"a"

Values of other kinds are never equal: true is not 1, and 1 is neither 1.0 nor decimal 1. Decimals are equal if scale and number
are: 1.0 is not 1.00. In an array or a table RabbitMQ compares the codes, too: text and octets differ there, and the order of a
nested table's fields counts.

Two things are different here (docs/amqp.md). A table that is decoded no longer knows the width of its numbers, so widths do not
count in arrays and tables either. A time equals the same time: RabbitMQ 4.3 multiplies that of a message by 1,000, and not that of
a binding.

Source: rabbitmq-server, ``rabbit_exchange_type_headers``, ``mc_amqpl:routing_headers`` and ``rabbit_misc:assert_args_equivalence``.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from understudy.broker.amqp.field_table import encode_table

_TEXT: Final = (str, bytes)


def same_value(one: object, other: object) -> bool:
    """Compare two values of outermost tables, as `field_table` decodes them; None stands for a field that is absent, too."""
    kind = type(one)
    if kind is type(other):
        return one == other if kind in _TEXT else _same_inner(one, other)
    return kind in _TEXT and type(other) in _TEXT and _octets(one) == _octets(other)


def same_arguments(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Compare two outermost tables field by field, codes included; the order of their fields does not count."""
    return one.keys() == other.keys() and all(_same_inner(value, other[name]) for name, value in one.items())


def binding_octets(arguments: Mapping[str, Any]) -> bytes:
    """Return the arguments of a binding as a table whose fields are in the order of their names.

    Two bindings of a queue to an exchange with one routing key are the same if these octets are.
    """
    return encode_table(dict(sorted(arguments.items())))


def _same_inner(one: object, other: object) -> bool:
    """Compare two values as RabbitMQ does within arrays and tables."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Decimal) and isinstance(other, Decimal):
        return one.as_tuple() == other.as_tuple()
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_inner, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(map(_same_inner, one.values(), other.values()))
    return one == other


def _octets(text: object) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text  # type: ignore[return-value]
