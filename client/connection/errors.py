"""Errors of the client's connection, by what a program may do after each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from understudy.client.connection.core.messages import Outgoing


NOT_SENT: Final = 0
"""Code of a refusal by the client itself: a value that AMQP cannot carry."""


class ClientError(Exception):
    """Root of all errors that a connection raises."""


class ArgumentError(ClientError, ValueError):
    """An address names neither broker nor group, or a name or a number is out of its range."""


class LoginRefusedError(ClientError):
    """A broker knows neither this user nor this password, or lacks the virtual host. Trying again does not help."""


class NoBrokerError(ClientError):
    """No broker let the client in before the connection gave up; the message has the reason of each address."""


class LostError(ClientError):
    """The connection or the channel is gone, or no answer came in time. The request was done or not."""


class RefusedError(ClientError):
    """A broker refuses a request and says why.

    Attributes:
        code: the reply code of AMQP 0-9-1, such as 404 or 406; 0: a value cannot be encoded, and nothing was sent.
        text: the broker's words.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class UnroutableError(ClientError):
    """No queue takes these messages. The rest of their transaction is committed.

    Attributes:
        messages: the mandatory messages that came back.
    """

    def __init__(self, messages: Sequence[Outgoing]) -> None:
        places = ", ".join(sorted({f"exchange {each.exchange!r}, key {each.routing_key!r}" for each in messages}))
        super().__init__(
            f"{len(messages)} messages reach no queue ({places}); the rest of the transaction is committed"
        )
        self.messages = tuple(messages)


class TransactionAborted(ClientError):  # noqa: N818  # an outcome, and named as the two outcomes are
    """Nothing of the transaction was done. Doing the work again is safe, under a new name."""


class TransactionUnknown(ClientError):  # noqa: N818  # as above
    """The broker was lost while it committed: the transaction is committed or not. Ask `outcome` before doing it again.

    Attributes:
        name: of the transaction, or the id that the broker gave it.
    """

    def __init__(self, name: str, reason: str, ask: Callable[[str], Any]) -> None:
        super().__init__(
            f"transaction {name!r}: the broker was lost while it committed ({reason}); ask for its outcome"
        )
        self.name = name
        self._ask = ask

    def outcome(self) -> Any:
        """Ask the group what became of the transaction, until it is decided; ``await`` it with an `AsyncConnection`.

        Returns:
            An `Outcome`.

        Raises:
            NoBrokerError: no broker answers.
            RefusedError: the broker keeps no outcomes.
        """
        return self._ask(self.name)
