"""CarrierHeader: what a broker that carries a client tells the broker that leads of it.

The carrier has authenticated the client, and has agreed with it on channel_max, frame_max and heartbeat. The other goes on at
connection.open. The header travels behind the handshake of a link, so only a broker of the group can say it; it carries no
password. Its octets are one field table of AMQP, because client properties are one: the decoder of tables takes any octets.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from understudy.broker.amqp.constants import FRAME_METHOD, FRAME_OVERHEAD
from understudy.broker.amqp.errors import FrameError
from understudy.broker.amqp.field_table import decode_table, encode_table
from understudy.broker.amqp.methods import CONNECTION_OPEN
from understudy.broker.errors import UnderstudyError

VERSION: Final = 1
MAX_NAME: Final = 255
_KEYS: Final = {
    "host": str,
    "port": int,
    "user": str,
    "vhost": str,
    "certificate": str,
    "properties": bytes,
    "channel_max": int,
    "frame_max": int,
    "heartbeat_s": int,
}
_HIGHEST: Final = {"port": 65_535, "channel_max": 65_535, "frame_max": (1 << 32) - 1, "heartbeat_s": 65_535}


class CarrierHeaderError(UnderstudyError):
    """These octets are no header of a carried client; the message names the key and the value."""


@attrs.frozen(kw_only=True)
class CarrierHeader:
    """One client, as the broker that carries it has met it.

    Attributes:
        host, port: the client's own address.
        user: authenticated by the carrier.
        vhost: of connection.open.
        certificate: subject of the certificate that the client has shown over TLS, "" for none.
        client_properties: of connection.start-ok.
        channel_max, frame_max, heartbeat_s: of connection.tune-ok.
    """

    host: str
    port: int
    user: str
    vhost: str
    certificate: str = ""
    client_properties: dict[str, Any]
    channel_max: int
    frame_max: int
    heartbeat_s: int


def encode_header(client: CarrierHeader) -> bytes:
    """The octets of a header."""
    return encode_table(
        {
            "version": VERSION,
            "host": client.host,
            "port": client.port,
            "user": client.user,
            "vhost": client.vhost,
            "certificate": client.certificate,
            "properties": encode_table(client.client_properties),
            "channel_max": client.channel_max,
            "frame_max": client.frame_max,
            "heartbeat_s": client.heartbeat_s,
        }
    )


def encode_farewell(text: str) -> bytes:
    """The octets by which a carrier that stops has its clients told ``text``."""
    return encode_table({"version": VERSION, "farewell": text})


def decode_header(octets: bytes) -> CarrierHeader | str:
    """Read a header, or the text of a farewell.

    Raises:
        CarrierHeaderError: these octets are neither.
    """
    try:
        table, end = decode_table(octets)
    except FrameError as error:
        raise CarrierHeaderError(f"a carrier header of {len(octets)} octets is no table: {error.text}") from error
    if end != len(octets):
        raise CarrierHeaderError(f"a carrier header has {len(octets) - end} octets behind its table")
    if table.get("version") != VERSION:
        raise CarrierHeaderError(f"a carrier header has version {table.get('version')!r}, known is {VERSION}")
    farewell = table.get("farewell")
    if isinstance(farewell, str):
        return farewell
    values = {key: _value(table, key, kind) for key, kind in _KEYS.items()}
    return CarrierHeader(client_properties=_table(values.pop("properties")), **values)


def _table(octets: bytes) -> dict[str, Any]:
    """A table of its own, since tables may be nested only so deep."""
    try:
        return decode_table(octets)[0]
    except FrameError as error:
        raise CarrierHeaderError(f"a carrier header has properties that are no table: {error.text}") from error


def _value(table: dict[str, Any], key: str, kind: type) -> Any:
    value: object = table.get(key)
    if type(value) is not kind:
        raise CarrierHeaderError(f"a carrier header has {key} = {_shown(value)}, expected is {kind.__name__}")
    if isinstance(value, int) and not 0 <= value <= _HIGHEST[key]:
        raise CarrierHeaderError(f"a carrier header has {key} = {value}, the highest is {_HIGHEST[key]}")
    if isinstance(value, str) and len(value) > MAX_NAME:
        raise CarrierHeaderError(f"a carrier header has a {key} of {len(value)} characters, {MAX_NAME} are the most")
    return value


def _shown(value: object) -> str:
    return ascii(value)[:100]


def after_open(octets: bytes) -> bytes:
    """The octets that a client has sent behind its connection.open.

    Args:
        octets: whole frames that a parser has taken, up to connection.open at least; then anything.
    """
    at = 0
    while at + FRAME_OVERHEAD <= len(octets):
        end = at + FRAME_OVERHEAD + int.from_bytes(octets[at + 3 : at + 7])
        key = int.from_bytes(octets[at + 7 : at + 11])
        if octets[at] == FRAME_METHOD and octets[at + 1 : at + 3] == b"\0\0" and key == CONNECTION_OPEN:
            return octets[end:]
        at = end
    raise AssertionError(f"no connection.open in {len(octets)} octets that were parsed")
