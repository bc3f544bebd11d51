"""Tickets: the text by which another program joins a transaction.

``uxt1.CHECKSUM.CONTENT``: one word of letters, digits, ``-``, ``_`` and ``.``, so it stands in a header or a message as it is. The
content is base64url of JSON. The state server's address is there for people. A ticket is no credential: the other program needs
its own access to the state server and to every resource manager.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from typing import Final

import msgspec

from understudy.xa.core.errors import TicketError

_MARK: Final = "uxt1"
_FORM: Final = re.compile(rf"{_MARK}\.([0-9a-f]{{8}})\.([A-Za-z0-9_-]+)")
_MAX_CHARACTERS: Final = 8192
_SHOWN: Final = 60


class Ticket(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The content of a ticket.

    Attributes:
        gid: the global id.
        job: of the transaction.
        profile: its name.
        fingerprint: of the profile.
        state_server: the address as the program has it that began the transaction.
    """

    gid: str
    job: str
    profile: str
    fingerprint: str
    state_server: str

    @property
    def text(self) -> str:
        """The ticket: printable ASCII without spaces; some 300 characters."""
        content = base64.urlsafe_b64encode(msgspec.json.encode(self)).rstrip(b"=")
        return f"{_MARK}.{zlib.crc32(content):08x}.{content.decode()}"


def ticket_of(text: str) -> Ticket:
    """The ticket that a text encodes.

    Raises:
        TicketError: the text is no ticket, or a damaged one.
    """
    shown = repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
    match = _FORM.fullmatch(text) if len(text) <= _MAX_CHARACTERS else None
    if match is None:
        raise TicketError(f"{shown} is no ticket of a transaction")
    content = match[2].encode()
    if zlib.crc32(content) != int(match[1], 16):
        raise TicketError(f"ticket {shown} is damaged: its checksum does not fit")
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(content + b"=" * (-len(content) % 4)), type=Ticket)
    except (binascii.Error, msgspec.MsgspecError) as error:
        raise TicketError(f"ticket {shown} cannot be read: {error}") from error


def check_place(ticket: Ticket, *, job: str, profile: str, fingerprint: str) -> None:
    """Raise unless a program of this job and profile may join.

    Raises:
        TicketError: it may not.
    """
    if ticket.job != job:
        raise TicketError(f"the ticket of transaction {ticket.gid} is of job {ticket.job}, and this is job {job}")
    if (ticket.profile, ticket.fingerprint) != (profile, fingerprint):
        raise TicketError(
            f"the ticket of transaction {ticket.gid} is of profile {ticket.profile!r} (fingerprint {ticket.fingerprint}), "
            f"and this is profile {profile!r} (fingerprint {fingerprint})"
        )
