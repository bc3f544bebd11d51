"""SASL: the user of a connection, by PLAIN (RFC 4616), AMQPLAIN (the table of AMQP 0-8), or EXTERNAL (RFC 4422 appendix A).

EXTERNAL takes the name in the client's certificate, which TLS has verified; what the client says of itself is not looked at.

A password costs some 50 ms to verify, so the answer may come later, and the connection waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from understudy.broker.amqp.errors import FrameError
from understudy.broker.amqp.field_table import decode_table
from understudy.broker.errors import AccessRefusedError, AmqpError
from understudy.broker.security import User

Answer = Callable[[User | AmqpError], None]


class PasswordCheck(Protocol):
    """Verifies passwords of users."""

    def check(
        self, name: str, password: str, peer_is_loopback: bool, answer: Answer, wanted: Callable[[], bool]
    ) -> None:
        """Call ``answer`` once, now or later, with the user or why it is refused (the text does not say which is wrong).

        It need not be called any more when ``wanted()`` has become False.
        """


class Authenticator(PasswordCheck, Protocol):
    """Knows users by their passwords, and by their certificates."""

    def certified(self, name: str | AmqpError, peer_is_loopback: bool) -> User | AmqpError:
        """The user of that name, which stands in the client's verified certificate; or why there is none."""


def offered(external: str | AmqpError | None) -> str:
    """The mechanisms that a client may choose from; see :meth:`Login.begin`."""
    return "PLAIN AMQPLAIN" if external is None else "PLAIN AMQPLAIN EXTERNAL"


class Login:
    """Checks one connection's credentials."""

    def __init__(self, users: Authenticator, loopback: bool) -> None:
        self._users = users
        self._loopback = loopback

    def begin(
        self,
        mechanism: str,
        response: bytes,
        answer: Answer,
        wanted: Callable[[], bool],
        external: str | AmqpError | None = None,
    ) -> None:
        """Find out whom ``response`` proves; see :meth:`Authenticator.check`.

        Args:
            mechanism: of SASL, as the client says.
            response: of connection.start-ok.
            answer: see there.
            wanted: see there.
            external: the user's name in the client's certificate, or why it has none; None: EXTERNAL is not offered.

        Raises:
            AccessRefusedError: an unknown mechanism, or a response that is none of its.
        """
        if mechanism == "EXTERNAL" and external is not None:
            answer(self._users.certified(external, self._loopback))
            return
        if mechanism == "PLAIN":
            name, password = self._plain(response)
        elif mechanism == "AMQPLAIN":
            name, password = self._amqplain(response)
        else:
            raise AccessRefusedError(f"SASL mechanism {mechanism!r} is not offered; {offered(external)} are")
        self.verify(name, password, answer, wanted)

    def verify(self, name: str, password: str, answer: Answer, wanted: Callable[[], bool]) -> None:
        """Find out if ``password`` is that of the user ``name``; see :meth:`Authenticator.check`."""
        self._users.check(name, password, self._loopback, answer, wanted)

    @staticmethod
    def _plain(response: bytes) -> tuple[str, str]:
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise AccessRefusedError("a PLAIN response has three parts: authorization, user name, password")
        return parts[1].decode("utf-8", "replace"), parts[2].decode("utf-8", "replace")

    @staticmethod
    def _amqplain(response: bytes) -> tuple[str, str]:
        try:
            table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0)
        except FrameError as error:
            raise AccessRefusedError(f"the AMQPLAIN response is not a table: {error.text}") from None
        login, password = table.get("LOGIN"), table.get("PASSWORD")
        if isinstance(login, bytes):
            login = login.decode("utf-8", "replace")
        if isinstance(password, bytes):
            password = password.decode("utf-8", "replace")
        if not isinstance(login, str) or not isinstance(password, str):
            raise AccessRefusedError("an AMQPLAIN response has LOGIN and PASSWORD")
        return login, password
