"""The header of a carried client: it comes back as it was, and octets that are none are refused by name."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.encode import HEARTBEAT_FRAME
from understudy.broker.amqp.field_table import encode_table
from understudy.broker.amqp.methods import CONNECTION_OPEN, CONNECTION_TUNE_OK, encode_method
from understudy.broker.core.clients.carrier_header import (
    CarrierHeader,
    CarrierHeaderError,
    after_open,
    decode_header,
    encode_farewell,
    encode_header,
)

CLIENT = CarrierHeader(
    host="192.0.2.7",
    port=4000,
    user="orders",
    vhost="/",
    certificate="CN=orders",
    client_properties={"product": "test", "capabilities": {"basic.nack": True}, "raw": b"\xff"},
    channel_max=7,
    frame_max=131_072,
    heartbeat_s=60,
)


def table(**changes: Any) -> bytes:
    fields: dict[str, Any] = {"version": 1, **attrs.asdict(CLIENT, recurse=False)}
    fields["properties"] = encode_table(fields.pop("client_properties"))
    return encode_table({key: value for key, value in (fields | changes).items() if value is not ...})


def test_a_header_comes_back_as_it_was() -> None:
    deep: dict[str, Any] = {}
    for _ in range(63):
        deep = {"deeper": deep}
    for client in (CLIENT, attrs.evolve(CLIENT, client_properties=deep, host="::1", certificate="", port=0)):
        assert decode_header(encode_header(client)) == client
    assert decode_header(table()) == CLIENT
    assert decode_header(encode_farewell("b2 stops")) == "b2 stops"


@pytest.mark.parametrize(
    ("octets", "said"),
    [
        (b"", "a carrier header of 0 octets is no table"),
        (table() + b"x", "a carrier header has 1 octets behind its table"),
        (table(version=2), "a carrier header has version 2, known is 1"),
        (table(version=...), "a carrier header has version None, known is 1"),
        (table(user=...), "a carrier header has user = None, expected is str"),
        (table(user=b"guest"), r"a carrier header has user = b'guest', expected is str"),
        (table(port=True), "a carrier header has port = True, expected is int"),
        (table(port=65_536), "a carrier header has port = 65536, the highest is 65535"),
        (table(heartbeat_s=-1), "a carrier header has heartbeat_s = -1, the highest is 65535"),
        (table(vhost="v" * 256), "a carrier header has a vhost of 256 characters, 255 are the most"),
        (table(properties=b"\0\0\0\1"), "a carrier header has properties that are no table"),
    ],
)
def test_octets_that_are_no_header_are_refused_by_name(octets: bytes, said: str) -> None:
    with pytest.raises(CarrierHeaderError, match=said):
        decode_header(octets)


@given(st.binary(max_size=200))
def test_any_octets_are_a_header_or_refused(octets: bytes) -> None:
    for each in (octets, len(octets).to_bytes(4, "big") + octets):
        try:
            decode_header(each)
        except CarrierHeaderError:
            continue


def test_what_comes_behind_connection_open_is_found() -> None:
    opened = encode_method(0, CONNECTION_TUNE_OK, 0, 0, 0) + HEARTBEAT_FRAME + encode_method(0, CONNECTION_OPEN, "/")
    for rest in (b"", b"\1", HEARTBEAT_FRAME, PROTOCOL_HEADER + opened):
        assert after_open(opened + rest) == rest
