"""A ticket lets another program join a transaction. Any other text, and a ticket of another place, is refused by name."""

from __future__ import annotations

import base64
import zlib

import pytest

from understudy.xa.core.errors import TicketError
from understudy.xa.core.manager.ticket import Ticket, check_place, ticket_of

GID = f"{1:064x}"
TICKET = Ticket(GID, "job", "shop", "f" * 32, "127.0.0.1:5680")


def test_a_ticket_says_what_was_put_into_it_and_stands_in_a_header() -> None:
    assert ticket_of(TICKET.text) == TICKET
    assert TICKET.text.isascii()
    assert TICKET.text.isprintable()
    assert not {" ", ",", ";", '"', "="} & set(TICKET.text)
    check_place(TICKET, job="job", profile="shop", fingerprint="f" * 32)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"job": "other"}, "is of job job, and this is job other"),
        ({"profile": "store"}, "is of profile 'shop'.*this is profile 'store'"),
        ({"fingerprint": "g"}, "fingerprint g"),
    ],
)
def test_a_ticket_of_another_place_is_refused(change: dict[str, str], text: str) -> None:
    with pytest.raises(TicketError, match=text):
        check_place(TICKET, **{"job": "job", "profile": "shop", "fingerprint": "f" * 32, **change})


@pytest.mark.parametrize(
    "bad", ["", "x", "uxt1", "ü", TICKET.text + " ", TICKET.text + "\n", "uxt2" + TICKET.text[4:], "a" * 10**6]
)
def test_garbage_is_no_ticket(bad: str) -> None:
    with pytest.raises(TicketError, match="is no ticket of a transaction"):
        ticket_of(bad)


def test_a_damaged_ticket_is_refused_whichever_character_it_is() -> None:
    text = TICKET.text
    for at in range(len(text)):
        bad = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        with pytest.raises(TicketError):
            ticket_of(bad)


@pytest.mark.parametrize("content", [b"{}", b"[1,2]", b"\xff", b'["a","b","c","d"]'])
def test_a_ticket_with_another_content_cannot_be_read(content: bytes) -> None:
    inside = base64.urlsafe_b64encode(content).rstrip(b"=")
    with pytest.raises(TicketError, match="cannot be read"):
        ticket_of(f"uxt1.{zlib.crc32(inside):08x}.{inside.decode()}")
