"""Errors of the stages library, by what they say of the database and of the messages.

Dead letters name an error by its module: letters of the same error have the same name in every release.
"""

from __future__ import annotations

from typing import Any


class StagesError(Exception):
    """Root of all errors that this library raises for its callers."""


class ConfigurationError(StagesError):
    """A stage, a flow or the application is declared wrongly; found before the first message."""


class DemarcationError(StagesError):
    """A call that the transaction of a stage or an initiation does not allow, such as ``commit()`` on its database."""


class NotCommittedError(StagesError):
    """Nothing of an initiation was committed: neither the database nor the messages. It may be done again."""


class NotSentError(StagesError):
    """The database of an initiation is committed, and its messages were not sent, or the broker did not say that they were.

    An initiation with an outbox never raises it: the relay sends the messages later.
    """


class OutcomeUnknownError(StagesError):
    """An initiation was committed or not, as far as is known: the database was lost while it committed.

    Without a database: the broker was lost, and cannot tell any more.
    """


class AlreadyBegunError(StagesError):
    """An initiation of this name was committed before; nothing was done this time."""


class NoReplyError(StagesError):
    """No reply came in time, or none that could be read. What was begun goes on."""


class TooManyWaitError(StagesError):
    """As many replies are awaited as may be. Nothing was begun."""


class Refuse(Exception):  # noqa: N818  # a verdict on the message, not a fault of the stage
    """Raised by a stage: the message goes to the dead-letter queue at this attempt, and the database is rolled back."""


def leaves_of(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    """The errors in a group and in the groups within it: task groups stand within each other. Each type and text once."""
    found: dict[tuple[type, str], BaseException] = {}
    for error in group.exceptions:
        for leaf in leaves_of(error) if isinstance(error, BaseExceptionGroup) else [error]:
            found.setdefault((type(leaf), str(leaf)), leaf)
    return list(found.values())
