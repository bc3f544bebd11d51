"""ClientTransactions: the transactions of one client of a run, in its log, each with its outcome.

A client treats the end of a transaction as docs/client.md asks of every client:

* tx.commit was never sent: rolled back, and known to be, for only a commit commits.
* commit-ok: committed. channel.close 406 or 506 instead: rolled back, the broker says so.
* anything else after tx.commit was sent: unknown. The client does not replay the transaction, and asks the primary for its outcome.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from understudy.client.runs.session import LostError, RefusedError
from understudy.client.verdicts.evidence.client_log import BY_BROKER, BY_CLIENT, BY_LOSS, ClientLog, Message

ROLLED_BACK_CODES: Final = frozenset({406, 506})


class ClientTransactions:
    """The transactions of one client, one after the other.

    Args:
        log: what the client writes down; ``log.client`` is its name.

    Attributes:
        unknown: name of the transaction whose outcome is to be asked for; "": none.
    """

    def __init__(self, log: ClientLog) -> None:
        self.unknown = ""
        self._log = log
        self._number = 0

    def next_name(self) -> str:
        """A name for the next transaction."""
        name = f"{self._log.client}-{self._number}"
        self._number += 1
        return name

    def begin(
        self, broker: object, taken: Sequence[Message], makes: Sequence[tuple[str, int]]
    ) -> tuple[str, list[Message]]:
        """Write down all that a transaction is about to do.

        Args:
            broker: its address.
            taken: the messages that it acknowledges or rejects.
            makes: queue and amount of each message that it publishes.

        Returns:
            Its name, and the messages that it publishes.
        """
        tx = self.next_name()
        messages = [Message(f"{tx}/{index}", queue, amount) for index, (queue, amount) in enumerate(makes)]
        self._log.began(tx, broker=str(broker))
        self._log.sent(messages, tx)
        self._log.acknowledged(taken, tx)
        return tx, messages

    @contextlib.contextmanager
    def before_commit(self, tx: str) -> Iterator[None]:
        """A loss in here, LostError or RefusedError, rolls the transaction back."""
        try:
            yield
        except (LostError, RefusedError) as error:
            self._log.rolled_back(tx, BY_LOSS, str(error))
            raise

    def rolled_back(self, tx: str) -> None:
        """Write down that rollback-ok has come."""
        self._log.rolled_back(tx, BY_CLIENT, "on purpose")

    @contextlib.contextmanager
    def committing(self, tx: str) -> Iterator[None]:
        """The time from just before tx.commit to commit-ok; LostError or RefusedError in here may leave the outcome unknown."""
        self._log.commit_sent(tx)
        try:
            yield
        except (LostError, RefusedError) as error:
            if isinstance(error, RefusedError) and error.code in ROLLED_BACK_CODES:
                self._log.rolled_back(tx, BY_BROKER, str(error))
            else:
                self._log.unknown(tx, str(error))
                self.unknown = tx
            raise
        self._log.committed(tx)

    def resolved(self, answer: str, questions: int) -> None:
        """Write down the answer of the outcome query, and how many questions it took."""
        self._log.resolved(self.unknown, answer, questions)
        self.unknown = ""
