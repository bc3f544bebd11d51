"""Ordering: messages of one key are processed in the order of their queue, also if one of them fails.

A stage with ``key=`` has one active consumer, so messages come in their order. When one fails, its key has a *line*: a row of
the database with the message as its *head*. Messages of the key that come meanwhile are parked behind it, in rows. The head
alone is processed. When it is done, the next parked message becomes the head and is sent to the queue again. A dead letter
stays the head until it is reissued and done, or purged: then a message without a function's call takes it out.

Every change of a line is in the transaction that has its reason: a follower is parked before it is acknowledged, and a head
goes with its work. After a crash the delivery comes again and finds the line as it was left.

Messages whose body does not decode have no key, and so have those without a ``message_id``: they hold up no other message.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core.envelope import Delivery, fits
from understudy.client.stages.core.steps import (
    BeginDatabase,
    Block,
    CommitDatabase,
    GiveBack,
    Park,
    RollbackDatabase,
    Settle,
    Step,
)

LONGEST_KEY: Final = 200
"""Octets."""

Key = Callable[[Any], str]


def key_of(key: Key | None, decode: Callable[[bytes], object], delivery: Delivery) -> str | None:
    """The key of a message; None if the stage has none, or no key can be had of this message.

    A message that has failed before keeps its key, whatever its body has been edited to. A message that no inbox can take has
    none: as the head of a line it would not be known when it comes again, and the line would stand for ever.
    """
    if key is None or not delivery.claimable:
        return None
    kept = delivery.text(headers.KEY)
    if kept and fits(kept, LONGEST_KEY):
        return kept
    try:
        found = key(decode(delivery.body))
        return found if found and fits(found, LONGEST_KEY) else None
    except Exception:  # noqa: BLE001  # the attempt says that there is none
        return None


def is_skip(delivery: Delivery) -> bool:
    """True if the message stands for a purged dead letter: its line goes on, and no function is called."""
    return delivery.headers.get(headers.SKIP) is True


def wait_behind(stage: str, key: str, delivery: Delivery) -> Generator[Step, Any, None]:
    """Park a message behind the head of its line, in the open transaction, and acknowledge it."""
    try:
        yield Park(stage, key, delivery)
        yield CommitDatabase()
    except Exception as error:  # noqa: BLE001  # the database is away
        yield RollbackDatabase()
        yield GiveBack(error)
        return
    yield Settle(())


def hold(stage: str, key: str, delivery: Delivery) -> Generator[Step, Any, bool]:
    """Make a failed message the head of its line; False if the delivery was given back instead."""
    try:
        yield BeginDatabase()
        failed = yield Block(stage, key, delivery)
        yield CommitDatabase()
    except Exception as error:  # noqa: BLE001  # the database is away
        yield RollbackDatabase()
        yield GiveBack(error)
        return False
    if not failed:
        yield GiveBack(RuntimeError(f"message {delivery.id} was processed by another worker meanwhile"))
        return False
    return True
