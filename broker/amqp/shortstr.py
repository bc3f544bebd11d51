"""Short strings: a length octet and up to 255 octets of UTF-8 (AMQP 0-9-1 section 4.2.5.3).

Two readings exist. Arguments of methods are names that the broker compares, prints and stores: they must be UTF-8, or
the method is malformed. Names and values in tables and properties belong to the application: octets that are not UTF-8
become lone surrogates (`surrogateescape`) and come out again as they went in.
"""

from __future__ import annotations

from typing import Final

from understudy.broker.amqp.errors import MalformedFrameError, UnencodableValueError

_LENGTH_OCTETS: Final = [bytes((length,)) for length in range(256)]


def encode_shortstr(text: str) -> bytes:
    """Return ``text`` with its length octet.

    Raises:
        UnencodableValueError: ``text`` is no str, has no UTF-8 form or has more than 255 octets of it.
    """
    return _with_length(text, "strict")


def decode_shortstr(buf: bytes, at: int) -> tuple[str, int]:
    """Read the short string at ``at`` in ``buf``, strictly; return it and the position after it.

    Raises:
        MalformedFrameError: it goes past the end of ``buf``, or is not UTF-8.
    """
    start, end = shortstr_span(buf, at, len(buf))
    try:
        return buf[start:end].decode(), end
    except UnicodeDecodeError:
        raise MalformedFrameError(f"short string {buf[start:end]!r} is not UTF-8") from None


def encode_loose_shortstr(text: str) -> bytes:
    """As `encode_shortstr`, and lone surrogates made by `decode_loose_shortstr` become the octets they were."""
    return _with_length(text, "surrogateescape")


def decode_loose_shortstr(buf: bytes, at: int, limit: int) -> tuple[str, int]:
    """As `decode_shortstr` for any octets; the string must end at or before position ``limit``."""
    start, end = shortstr_span(buf, at, limit)
    return buf[start:end].decode("utf-8", "surrogateescape"), end


def shortstr_span(buf: bytes, at: int, limit: int) -> tuple[int, int]:
    """Return (start, end) of the octets of the short string at ``at``, without its length octet.

    Raises:
        MalformedFrameError: it goes past ``limit``, which is at most ``len(buf)``.
    """
    start = at + 1
    if start > limit or start + buf[at] > limit:
        raise MalformedFrameError(f"short string at octet {at} goes past the end at {limit}")
    return start, start + buf[at]


def _with_length(text: str, errors: str) -> bytes:
    try:
        octets = text.encode("utf-8", errors)
    except AttributeError:
        raise UnencodableValueError(f"{text!r} is no short string but a {type(text).__name__}") from None
    except UnicodeEncodeError:
        raise UnencodableValueError(f"short string {text!r} has no UTF-8 form") from None
    length = len(octets)
    if length > 255:
        raise UnencodableValueError(f"short string of {length} octets, 255 is the most: {text[:40]!r}...")
    return _LENGTH_OCTETS[length] + octets
