"""Turns the written layout of a method into the code that reads and writes its arguments.

A layout is a text such as `"reserved_1:short queue:shortstr passive:bit durable:bit arguments:table"`: the arguments in
the order of the wire. It is compiled once, at import, into a few steps, each for a run of fixed-size arguments (one
`struct` call) or for one string or table. Consecutive bits share octets, the first in the lowest position (AMQP 0-9-1
section 4.2.5.2). Arguments called `reserved_N` exist on the wire only: they are skipped in reading and written as zero
or empty.

Refused: source text generated from the layout and run by `exec`. It gains nothing where it matters: the hot methods are
read by hand in `frames.py` and written by hand in `encode.py`; the others cost 1 to 2.5 us so.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from struct import Struct
from typing import Any, Final, TypeAlias

import attrs

from understudy.broker.amqp.errors import MalformedFrameError, UnencodableValueError
from understudy.broker.amqp.field_table import decode_table, encode_table, table_span
from understudy.broker.amqp.shortstr import decode_shortstr, encode_shortstr, shortstr_span

Reader: TypeAlias = Callable[[bytes, int, list[Any]], int]
"""(payload, position, arguments so far) -> position after; appends what it read to the arguments."""

Writer: TypeAlias = Callable[[Sequence[Any]], bytes]
"""All arguments of the method -> the octets of those this writer is for."""

_NUMBERS: Final[Mapping[str, str]] = {"octet": "B", "short": "H", "long": "I", "longlong": "Q"}
"""Unsigned numbers and their `struct` codes."""

_VARIABLE: Final = frozenset({"shortstr", "longstr", "table"})


@attrs.frozen
class Field:
    """One argument of a method.

    Attributes:
        name: as in the specification, with underscores.
        type: octet, short, long, longlong (unsigned 8 to 64 bits), bit, shortstr (str), longstr (bytes) or table (dict).
    """

    name: str
    type: str = attrs.field(validator=attrs.validators.in_(_VARIABLE | {*_NUMBERS, "bit"}))

    @property
    def reserved(self) -> bool:
        """True for an argument that only fills its place on the wire."""
        return self.name.startswith("reserved_")


@attrs.frozen
class Layout:
    """How the arguments of one method lie on the wire.

    Attributes:
        names: of the arguments that are not reserved, in the order in which `read` returns and `write` takes them.
    """

    names: tuple[str, ...]
    _readers: tuple[Reader, ...]
    _writers: tuple[Writer, ...]

    def read(self, payload: bytes, at: int) -> tuple[Any, ...]:
        """Return the arguments that fill ``payload`` from ``at`` to its end.

        Raises:
            MalformedFrameError: they end early, octets are left over, or one of them is malformed.
        """
        arguments: list[Any] = []
        try:
            for reader in self._readers:
                at = reader(payload, at, arguments)
        except struct.error:
            raise MalformedFrameError(f"arguments end after {len(arguments)} of {len(self.names)}") from None
        if at != len(payload):
            raise MalformedFrameError(f"{len(payload) - at} octets left over after the arguments")
        return tuple(arguments)

    def write(self, arguments: Sequence[Any]) -> bytes:
        """Return the octets of ``arguments``.

        Raises:
            UnencodableValueError: their number is not that of `names`, or one is of a wrong type or out of range.
        """
        if len(arguments) != len(self.names):
            raise UnencodableValueError(f"{len(arguments)} arguments given for {self.names}")
        try:
            return b"".join([writer(arguments) for writer in self._writers])
        except (struct.error, TypeError, AttributeError) as wrong:
            raise UnencodableValueError(f"{arguments!r} do not fit {self.names}: {wrong}") from wrong


def parse_fields(text: str) -> tuple[Field, ...]:
    """Return the fields of a layout text: words `name:type` with spaces between them."""
    return tuple(Field(*word.split(":")) for word in text.split())


def compile_layout(fields: Sequence[Field]) -> Layout:
    """Build the readers and writers for ``fields``."""
    readers: list[Reader] = []
    writers: list[Writer] = []
    index = 0
    for variable, group in groupby(fields, key=lambda field: field.type in _VARIABLE):
        run = list(group)
        if variable:
            for field in run:
                readers.append(_SKIPPERS[field.type] if field.reserved else _READERS[field.type])
                writers.append(_variable_writer(field, index))
                index += not field.reserved
        else:
            reader, writer = _compile_run(run, index)
            readers.append(reader)
            writers.append(writer)
            index += sum(not field.reserved for field in run)
    names = tuple(field.name for field in fields if not field.reserved)
    return Layout(names, tuple(readers), tuple(writers))


# fixed-size arguments -----------------------------------------------------------------------------


def _compile_run(run: Sequence[Field], first: int) -> tuple[Reader, Writer]:
    """Compile numbers and bits that follow one another; the first of them that is not reserved is argument number ``first``."""
    layout = ">"
    slots: list[
        int | list[int | None]
    ] = []  # An argument's index, or those of up to 8 bits of one octet (None: reserved).
    index = first
    for is_bit, group in groupby(run, key=lambda field: field.type == "bit"):
        fields = list(group)
        for at, field in enumerate(fields):
            number = None if field.reserved else index
            index += number is not None
            if not is_bit:
                layout += (
                    _NUMBERS[field.type] if number is not None else "x" * struct.calcsize(">" + _NUMBERS[field.type])
                )
                if number is not None:
                    slots.append(number)
            elif at % 8 == 0:
                layout += "B"
                slots.append([number])
            else:
                octet = slots[-1]
                assert isinstance(octet, list)
                octet.append(number)
    return _run_reader(Struct(layout), slots), _run_writer(Struct(layout), slots)


def _run_reader(layout: Struct, slots: Sequence[int | list[int | None]]) -> Reader:
    size = layout.size
    unpack = layout.unpack_from
    masks = [
        None if isinstance(slot, int) else [1 << bit for bit, index in enumerate(slot) if index is not None]
        for slot in slots
    ]

    def read_numbers(payload: bytes, at: int, arguments: list[Any]) -> int:
        arguments += unpack(payload, at)
        return at + size

    def read_run(payload: bytes, at: int, arguments: list[Any]) -> int:
        for value, bits in zip(unpack(payload, at), masks, strict=True):
            if bits is None:
                arguments.append(value)
            else:
                arguments += [value & bit != 0 for bit in bits]
        return at + size

    return read_numbers if all(bits is None for bits in masks) else read_run


def _run_writer(layout: Struct, slots: Sequence[int | list[int | None]]) -> Writer:
    pack = layout.pack

    def write_run(arguments: Sequence[Any]) -> bytes:
        return pack(*[arguments[slot] if isinstance(slot, int) else _octet_of(slot, arguments) for slot in slots])

    return write_run


def _octet_of(bits: Sequence[int | None], arguments: Sequence[Any]) -> int:
    return sum(1 << at for at, index in enumerate(bits) if index is not None and arguments[index])


# strings and tables -------------------------------------------------------------------------------


def _read_shortstr(payload: bytes, at: int, arguments: list[Any]) -> int:
    text, at = decode_shortstr(payload, at)
    arguments.append(text)
    return at


def _read_longstr(payload: bytes, at: int, arguments: list[Any]) -> int:
    start, end = table_span(payload, at, len(payload))
    arguments.append(payload[start:end])
    return end


def _read_table(payload: bytes, at: int, arguments: list[Any]) -> int:
    fields, at = decode_table(payload, at)
    arguments.append(fields)
    return at


def _skip_shortstr(payload: bytes, at: int, _arguments: list[Any]) -> int:
    return shortstr_span(payload, at, len(payload))[1]


def _skip_with_length(payload: bytes, at: int, _arguments: list[Any]) -> int:
    return table_span(payload, at, len(payload))[1]


def _encode_longstr(octets: bytes | str) -> bytes:
    if isinstance(octets, str):
        octets = octets.encode()
    return struct.pack(">I", len(octets)) + octets


def _variable_writer(field: Field, index: int) -> Writer:
    if field.reserved:
        empty = b"\x00" if field.type == "shortstr" else b"\x00\x00\x00\x00"
        return lambda _arguments: empty
    encode = _ENCODERS[field.type]
    return lambda arguments: encode(arguments[index])


_READERS: Final[Mapping[str, Reader]] = {"shortstr": _read_shortstr, "longstr": _read_longstr, "table": _read_table}
_SKIPPERS: Final[Mapping[str, Reader]] = {
    "shortstr": _skip_shortstr,
    "longstr": _skip_with_length,
    "table": _skip_with_length,
}
_ENCODERS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "shortstr": encode_shortstr,
    "longstr": _encode_longstr,
    "table": encode_table,
}
