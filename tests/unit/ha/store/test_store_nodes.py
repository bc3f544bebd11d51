"""The nodes in ZooKeeper: what is written is read, what is not known is kept, and nonsense is named with path and value."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from understudy.ha.store.coordination import Bar, BrokerInfo, Damage, GroupState, HistoryEntry
from understudy.ha.store.nodes import (
    MAX_SHOWN,
    NodeError,
    Paths,
    decode_broker,
    decode_group,
    decode_history,
    encode_broker,
    encode_group,
    encode_history,
    newest,
)
from understudy.replicator.receiving.disk_claim import DiskClaim

FIRST = GroupState(epoch=1, primary="b1", members=("b1", "b2"), version=1, min_insync=1, founding=7)
PATH = "/understudy/g/group"


def test_what_is_written_is_read() -> None:
    full = attrs.evolve(FIRST, damaged=(Damage("b2", "x"),), successor="b2", barred=(Bar("b3"),))
    assert decode_group(PATH, encode_group(full, {})) == (full, {})
    info = BrokerInfo(broker="b1", link="l", amqp="a", status="ready", position=5, claim=DiskClaim(1, 2, 3))
    assert decode_broker("/x/brokers/b1", encode_broker(info)) == info
    entry = HistoryEntry(wall_ms=1, epoch=2, version=3, by="b1", what="é")
    assert decode_history("/x", encode_history(entry)) == entry


def test_a_key_that_is_not_known_is_kept_and_one_that_is_missing_has_its_default() -> None:
    """An older program and a newer one change the same node, in turn."""
    newer = encode_group(FIRST, {"quorum": {"of": ["b1"]}})
    group, extras = decode_group(PATH, newer)
    changed = attrs.evolve(group, version=2)
    assert json.loads(encode_group(changed, extras)) == json.loads(newer) | {"version": 2}
    table = json.loads(encode_group(FIRST, {}))
    del table["barred"], table["successor"], table["damaged"]
    assert decode_group(PATH, json.dumps(table).encode()) == (FIRST, {})


def test_names_that_are_not_utf_8_are_written_in_escaped_form() -> None:
    info = BrokerInfo(broker="b1", link="l", amqp="a", blockers="queue \udc80")
    assert decode_broker("/x/b1", encode_broker(info)).blockers == "queue \\udc80"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schema": 2}, "has schema 2, this program knows schema 1: upgrade it"),
        ({"schema": "1"}, "has no schema number of at least 1"),
        ({"schema": None}, "has no schema number of at least 1"),
        ({"epoch": "one"}, "cannot be read: Expected `int`, got `str`"),
        ({"epoch": 0}, "must have epoch and version of at least 1"),
        ({"min_insync": -1}, "must have min_insync from 1 to 64"),
        ({"min_insync": 65}, "must have min_insync from 1 to 64"),
        ({"founding": 1 << 63}, "must have a founding from 1 to 2**63 - 1"),
        ({"founding": 0}, "must have a founding from 1 to 2**63 - 1"),
        ({"members": "b1"}, "cannot be read: Expected `array`, got `str`"),
        ({"members": ["b2", "b1"]}, "must have different, sorted members"),
        ({"members": ["b1", "b1"]}, "must have different, sorted members"),
        ({"epoch": 1 << 62}, "must have epoch and version of at least 1, and none of 2**62 or more"),
        ({"primary": ""}, "must have a primary that is a member"),
        ({"primary": "b3"}, "must have a primary that is a member"),
        ({"barred": [{"broker": "b2"}]}, "must have no barred member"),
        ({"forced": 2}, "must have a forced epoch from 0 to its epoch"),
        ({"primary": None}, "cannot be read: Expected `str`, got `null`"),
    ],
)
def test_nonsense_is_named_with_path_and_value(changes: dict[str, Any], told: str) -> None:
    raw = json.dumps(json.loads(encode_group(FIRST, {})) | changes).encode()
    with pytest.raises(NodeError) as caught:
        decode_group(PATH, raw)
    assert str(caught.value).startswith(f"{PATH} {told}")
    assert raw.decode()[:50] in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"[]", b"\xff\xfe", b"null", b"{" * 5_000, b'{"schema":1}'])
def test_no_bytes_are_more_than_an_error(raw: bytes) -> None:
    for decode in (decode_group, decode_broker, decode_history):
        with pytest.raises(NodeError, match=PATH) as caught:
            decode(PATH, raw)
        assert len(str(caught.value)) < 2 * MAX_SHOWN


def test_a_row_is_of_the_broker_that_its_path_names() -> None:
    with pytest.raises(NodeError, match="/x/b2 is of broker 'b1'"):
        decode_broker("/x/b2", encode_broker(BrokerInfo(broker="b1", link="l", amqp="a")))


def test_paths() -> None:
    paths = Paths("g", "/production")
    assert (paths.group, paths.folders[0]) == ("/production/understudy/g/group", "/production/understudy/g/brokers")
    assert newest(["h-0000000010", "h-0000000009"]) == ["h-0000000009", "h-0000000010"]
