"""Xid: the name of one branch of a distributed transaction, in one vhost (X/Open XA, section 4.2; docs/dtx.md)."""

from __future__ import annotations

import re
from struct import Struct
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

import attrs

from understudy.broker.errors import InvalidArgumentError

MAX_ID_BYTES: Final = 64
_FORMAT: Final = Struct(">I")
_TEXT: Final = re.compile(r"(\d{1,10}):([A-Za-z0-9_.%~-]+):([A-Za-z0-9_.%~-]*)")


@attrs.frozen(order=True)
class Xid:
    """Format id (0 to 2^32 - 1), global id (1 to 64 bytes) and branch id (0 to 64 bytes)."""

    format_id: int
    global_id: bytes
    branch_id: bytes

    @classmethod
    def checked(cls, format_id: int, global_id: bytes, branch_id: bytes) -> Xid:
        """As a client gives it.

        Raises:
            InvalidArgumentError: the global id is empty, or an id is too long.
        """
        for what, value, least in (("global id", global_id, 1), ("branch id", branch_id, 0)):
            if not least <= len(value) <= MAX_ID_BYTES:
                raise InvalidArgumentError(
                    f"the {what} of an xid has {least} to {MAX_ID_BYTES} bytes, this one has {len(value)}"
                )
        return cls(format_id, global_id, branch_id)

    def encode(self) -> bytes:
        """``format id u32 | length u8 | global id | length u8 | branch id``."""
        return b"".join(
            (
                _FORMAT.pack(self.format_id),
                bytes((len(self.global_id),)),
                self.global_id,
                bytes((len(self.branch_id),)),
                self.branch_id,
            )
        )

    @classmethod
    def decode(cls, buf: bytes, at: int = 0) -> tuple[Xid, int]:
        """The xid at ``at``, and where it ends."""
        (format_id,) = _FORMAT.unpack_from(buf, at)
        at += 4
        end = at + 1 + buf[at]
        global_id = buf[at + 1 : end]
        branch_end = end + 1 + buf[end]
        return cls(format_id, bytes(global_id), bytes(buf[end + 1 : branch_end])), branch_end

    def __str__(self) -> str:
        """For people, logs and commands: ``0:order%2017:b1``. An empty branch id leaves the end empty: ``0:order:``."""
        return f"{self.format_id}:{quote_from_bytes(self.global_id, '')}:{quote_from_bytes(self.branch_id, '')}"

    @classmethod
    def parse(cls, text: str) -> Xid:
        """The reverse of :meth:`__str__`.

        Raises:
            ValueError: it is not of that form.
        """
        found = _TEXT.fullmatch(text)
        if found is None or int(found[1]) >= 1 << 32:
            raise ValueError(
                f"{text!r} is no xid: it is written format:global:branch, other bytes than letters, digits and -_.~ as %XX"
            )
        try:
            return cls.checked(int(found[1]), unquote_to_bytes(found[2]), unquote_to_bytes(found[3]))
        except InvalidArgumentError as error:
            raise ValueError(f"{text!r} is no xid: {error.text}") from error
