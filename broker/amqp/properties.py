"""The properties of a message, as the raw octets that stand in its content header: flags, then the values of those present.

Throughout the broker a message carries these octets and nothing decoded: they are stored, replicated and delivered as
they came. The functions here read one property by stepping over those before it, or not even that if its flag is not
set. Only `decode_properties` and `headers` build a dict; `with_header` cuts and joins octets, so that what it does not
touch keeps its form.

Whatever the octets, each function returns or raises `MalformedFrameError` (502). A single accessor looks no further
than it must, so whoever takes a message in calls `check_properties` (or `is_checked_persistent`) once; after it no
function here raises for these octets.

Strings are read with `surrogateescape`: what an application calls a correlation id need not be UTF-8, and the broker
only compares it. Flags beyond the fourteen properties, or a second word of flags, announce values nobody can step over;
they are malformed.

Source: AMQP 0-9-1 sections 4.2.6.1 (content header) and 1.8 (class basic).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from understudy.broker.amqp.errors import MalformedFrameError, UnencodableValueError
from understudy.broker.amqp.field_table import (
    FieldTable,
    FieldValue,
    decode_field_value,
    decode_table,
    decode_timestamp,
    encode_field,
    encode_table,
    encode_timestamp,
    find_field,
    table_span,
    without_field,
)
from understudy.broker.amqp.shortstr import decode_loose_shortstr, encode_loose_shortstr, shortstr_span

_CONTENT_TYPE: Final = 1 << 15
_CONTENT_ENCODING: Final = 1 << 14
_HEADERS: Final = 1 << 13
_DELIVERY_MODE: Final = 1 << 12
_PRIORITY: Final = 1 << 11
_CORRELATION_ID: Final = 1 << 10
_REPLY_TO: Final = 1 << 9
_EXPIRATION: Final = 1 << 8
_MESSAGE_ID: Final = 1 << 7
_TIMESTAMP: Final = 1 << 6
_TYPE: Final = 1 << 5
_USER_ID: Final = 1 << 4
_APP_ID: Final = 1 << 3
_CLUSTER_ID: Final = 1 << 2

PROPERTY_NAMES: Final = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
"""In the order of the wire; the first has the highest flag."""

_FLAGS: Final[Mapping[str, int]] = {name: 1 << 15 - at for at, name in enumerate(PROPERTY_NAMES)}
_OCTETS: Final = _DELIVERY_MODE | _PRIORITY
_STRINGS: Final = sum(_FLAGS.values()) - _HEADERS - _OCTETS - _TIMESTAMP
_UNKNOWN: Final = 0b11

# Flags -> their single bits in the order of the wire. 2**14 small entries at most; publishers use a handful.
_plans: Final[dict[int, tuple[int, ...]]] = {}

# What publishers repeat with every message. Shared by all connections.
_REPEATED_ENTRIES: Final = 4096
_REPEATED_BYTES: Final = 256
"""Longer properties are not remembered: they hold headers that hardly repeat."""
_checked: Final[dict[bytes, bool]] = {}
"""To whether they are persistent."""
_expirations: Final[dict[bytes, str]] = {}


# the whole ------------------------------------------------------------------------------------------------------------


def encode_properties(properties: Mapping[str, Any] | None = None, /, **fields: Any) -> bytes:
    """Return the octets for ``properties`` and ``fields``, which are one set of names; None values are left out.

    Args:
        properties: names of `PROPERTY_NAMES`; headers a mapping (see `field_table.py`), delivery_mode and priority
            0..255, timestamp a `datetime` or seconds since 1970, all others str of at most 255 octets.
        fields: the same, and they win.

    Raises:
        UnencodableValueError: unknown name, wrong type, out of range, too long.
    """
    given = {**(properties or {}), **fields}
    flags = 0
    parts = [b""]
    for name, flag in _FLAGS.items():
        value = given.pop(name, None)
        if value is None:
            continue
        flags |= flag
        if flag & _STRINGS:
            parts.append(encode_loose_shortstr(value))
        elif flag & _OCTETS:
            parts.append(_octet(name, value))
        elif flag == _TIMESTAMP:
            parts.append(encode_timestamp(value))
        elif isinstance(value, Mapping):
            parts.append(encode_table(value))
        else:
            raise UnencodableValueError(f"headers {value!r} are no mapping")
    if given:
        raise UnencodableValueError(f"no properties {sorted(given)}")
    parts[0] = flags.to_bytes(2)
    return b"".join(parts)


def _octet(name: str, value: object) -> bytes:
    if not isinstance(value, int) or not 0 <= value <= 255:
        raise UnencodableValueError(f"{name} {value!r} is no integer of 0..255")
    return bytes((value,))


def decode_properties(raw: bytes) -> dict[str, Any]:
    """Return the properties that are present, by name in the order of the wire; types as `encode_properties` takes them."""
    found: dict[str, Any] = {}
    at = 2
    for flag in _plan(_flags(raw)):
        name = PROPERTY_NAMES[16 - flag.bit_length()]
        end = _after(raw, flag, at)
        found[name] = _value(raw, flag, at)
        at = end
    _no_rest(raw, at)
    return found


def check_properties(raw: bytes) -> None:
    """Raise `MalformedFrameError` unless ``raw`` is one whole set of properties that can be read to the end, headers included."""
    is_checked_persistent(raw)


def is_checked_persistent(raw: bytes) -> bool:
    """Do what `check_properties` does, and return `is_persistent`: one look-up for both, which every message needs."""
    repeats = len(raw) <= _REPEATED_BYTES
    if repeats:
        persistent = _checked.get(raw)
        if persistent is not None:
            return persistent
    at = 2
    for flag in _plan(_flags(raw)):
        if flag == _HEADERS:
            decode_table(raw, at)
        at = _after(raw, flag, at)
    _no_rest(raw, at)
    persistent = is_persistent(raw)
    if repeats:
        if len(_checked) >= _REPEATED_ENTRIES:
            _checked.clear()
        _checked[raw] = persistent
    return persistent


# single properties ----------------------------------------------------------------------------------------------------


def is_persistent(raw: bytes) -> bool:
    """Return whether the delivery mode is 2; any other, or none, is transient, as in RabbitMQ."""
    return delivery_mode(raw) == 2


def delivery_mode(raw: bytes) -> int:
    """Return the delivery mode octet, 1 (transient) if there is none; 2 is persistent, other values mean nothing."""
    # By hand, as every message is asked.
    try:
        high = raw[0]
        if not high & 0x10:
            return 1
        at = 2
        if high & 0xE0:
            if high & 0x80:
                at += 1 + raw[at]
            if high & 0x40:
                at += 1 + raw[at]
            if high & 0x20:
                at += 4 + int.from_bytes(raw[at : at + 4])
        return raw[at]
    except IndexError:
        raise MalformedFrameError(f"properties {raw[:40].hex()} end before the delivery mode") from None


def has_headers(raw: bytes) -> bool:
    """Return whether there is a header table, be it empty."""
    return raw != b"" and raw[0] & 0x20 != 0


def expiration(raw: bytes) -> str | None:
    """Return the expiration, by custom milliseconds as decimal digits (not looked at here), or None."""
    if not raw or not raw[0] & 0x01:
        return None
    text = _expirations.get(raw)
    if text is None:
        text = _string(raw, _EXPIRATION)
        if text is not None and len(raw) <= _REPEATED_BYTES:
            if len(_expirations) >= _REPEATED_ENTRIES:
                _expirations.clear()
            _expirations[raw] = text
    return text


def priority(raw: bytes) -> int | None:
    """Return the priority, 0..255, or None."""
    return raw[_find(raw, _PRIORITY)] if _flags(raw) & _PRIORITY else None


def content_type(raw: bytes) -> str | None:
    """Return the content type, or None."""
    return _string(raw, _CONTENT_TYPE)


def correlation_id(raw: bytes) -> str | None:
    """Return the correlation id, or None."""
    return _string(raw, _CORRELATION_ID)


def reply_to(raw: bytes) -> str | None:
    """Return the reply-to address, or None."""
    return _string(raw, _REPLY_TO)


def message_id(raw: bytes) -> str | None:
    """Return the message id, or None."""
    return _string(raw, _MESSAGE_ID)


def user_id(raw: bytes) -> str | None:
    """Return the user id, which the broker has to compare with the user of the connection, or None."""
    return _string(raw, _USER_ID)


# headers --------------------------------------------------------------------------------------------------------------


def headers(raw: bytes) -> FieldTable:
    """Return the header table as a new dict, empty if there is none."""
    if not _flags(raw) & _HEADERS:
        return {}
    return decode_table(raw, _find(raw, _HEADERS))[0]


def header(raw: bytes, name: str) -> FieldValue:
    """Return one header, None if it is absent (or void). No other is read."""
    if not _flags(raw) & _HEADERS:
        return None
    start, end = table_span(raw, _find(raw, _HEADERS), len(raw))
    found = find_field(raw, start, end, _name_octets(name))
    return None if found is None else decode_field_value(raw, found[1], found[2])


def with_header(raw: bytes, name: str, value: object) -> bytes:
    """Return ``raw`` with the header ``name`` set to ``value``, as the last of the headers.

    All other headers and properties keep their octets. An older header of that name is taken out; if some client wrote
    it several times, all of them are.

    Raises:
        MalformedFrameError: ``raw`` is malformed before or in the headers.
        UnencodableValueError: ``name`` or ``value`` has no form on the wire.
    """
    field = encode_field(name, value)
    flags = _flags(raw)
    at = _find(raw, _HEADERS)
    if not flags & _HEADERS:
        return b"".join(((flags | _HEADERS).to_bytes(2), raw[2:at], len(field).to_bytes(4), field, raw[at:]))
    start, end = table_span(raw, at, len(raw))
    fields = without_field(raw[start:end], _name_octets(name))
    return b"".join((raw[:at], (len(fields) + len(field)).to_bytes(4), fields, field, raw[end:]))


def with_fields(raw: bytes, fields: bytes, names: Iterable[bytes]) -> bytes:
    """Return ``raw`` with headers that are encoded already, behind all others. Those of ``names`` are taken out before.

    All other headers and properties keep their octets.

    Args:
        raw: properties.
        fields: results of `field_table.encode_field`, joined.
        names: octets of names, without their length.

    Raises:
        MalformedFrameError: ``raw`` is malformed before or in the headers.
    """
    flags = _flags(raw)
    at = _find(raw, _HEADERS)
    if not flags & _HEADERS:
        return b"".join(((flags | _HEADERS).to_bytes(2), raw[2:at], len(fields).to_bytes(4), fields, raw[at:]))
    start, end = table_span(raw, at, len(raw))
    kept = raw[start:end]
    for name in names:
        if name in kept:  # or in a value: then nothing is taken out
            kept = without_field(kept, name)
    return b"".join((raw[:at], (len(kept) + len(fields)).to_bytes(4), kept, fields, raw[end:]))


def with_reply_to(raw: bytes, name: str) -> bytes:
    """Return ``raw`` with ``name`` in place of its reply-to; all else keeps its octets.

    Args:
        raw: properties that have a reply-to.
        name: at most 255 octets of UTF-8.

    Raises:
        MalformedFrameError: ``raw`` is malformed up to there.
    """
    at = _find(raw, _REPLY_TO)
    return b"".join((raw[:at], encode_loose_shortstr(name), raw[_after(raw, _REPLY_TO, at) :]))


def without_expiration(raw: bytes) -> bytes:
    """Return ``raw`` without the property expiration; all else keeps its octets.

    Raises:
        MalformedFrameError: ``raw`` is malformed up to there.
    """
    flags = _flags(raw)
    if not flags & _EXPIRATION:
        return raw
    at = _find(raw, _EXPIRATION)
    return b"".join(((flags & ~_EXPIRATION).to_bytes(2), raw[2:at], raw[_after(raw, _EXPIRATION, at) :]))


def without_header(raw: bytes, name: str) -> bytes:
    """Return ``raw`` without the header ``name``, however often it is there; a table that had no other header stays, and is empty.

    All other headers and properties keep their octets.

    Raises:
        MalformedFrameError: ``raw`` is malformed before or in the headers.
    """
    if not _flags(raw) & _HEADERS:
        return raw
    at = _find(raw, _HEADERS)
    start, end = table_span(raw, at, len(raw))
    fields = without_field(raw[start:end], _name_octets(name))
    if len(fields) == end - start:
        return raw
    return b"".join((raw[:at], len(fields).to_bytes(4), fields, raw[end:]))


def _name_octets(name: str) -> bytes:
    return encode_loose_shortstr(name)[1:]


# stepping -------------------------------------------------------------------------------------------------------------


def _flags(raw: bytes) -> int:
    flags = int.from_bytes(raw[:2])
    if len(raw) < 2 or flags & _UNKNOWN:
        raise MalformedFrameError(f"property flags {raw[:2].hex() or 'missing'}")
    return flags


def _plan(flags: int) -> tuple[int, ...]:
    plan = _plans.get(flags)
    if plan is None:
        plan = _plans[flags] = tuple(flag for flag in _FLAGS.values() if flags & flag)
    return plan


def _find(raw: bytes, wanted: int) -> int:
    """Return where the property with flag ``wanted`` is, or would have to be."""
    flags = _flags(raw)
    at = 2
    for flag in _plan(flags & -(wanted << 1)):
        at = _after(raw, flag, at)
    if flags & wanted:
        _after(raw, wanted, at)
    return at


def _after(raw: bytes, flag: int, at: int) -> int:
    """Return where the property with ``flag`` ends that begins at ``at``."""
    if flag & _STRINGS:
        return shortstr_span(raw, at, len(raw))[1]
    if flag == _HEADERS:
        return table_span(raw, at, len(raw))[1]
    end = at + (8 if flag == _TIMESTAMP else 1)
    if end > len(raw):
        raise MalformedFrameError(f"{PROPERTY_NAMES[16 - flag.bit_length()]} missing at octet {at} of the properties")
    return end


def _value(raw: bytes, flag: int, at: int) -> Any:
    """Read the property with ``flag`` at ``at``, which is known to be whole."""
    if flag & _STRINGS:
        return decode_loose_shortstr(raw, at, len(raw))[0]
    if flag == _HEADERS:
        return decode_table(raw, at)[0]
    return decode_timestamp(raw, at) if flag == _TIMESTAMP else raw[at]


def _string(raw: bytes, wanted: int) -> str | None:
    if not _flags(raw) & wanted:
        return None
    return decode_loose_shortstr(raw, _find(raw, wanted), len(raw))[0]


def _no_rest(raw: bytes, at: int) -> None:
    if at != len(raw):
        raise MalformedFrameError(f"{len(raw) - at} octets left over after the properties")


PERSISTENT: Final = encode_properties(delivery_mode=2)
"""The commonest properties: delivery mode 2 and nothing else."""
