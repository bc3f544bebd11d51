"""Lost: messages that must be in a queue and are not.

Rule (G1, G4): a message that a committed transaction made, or that was confirmed, lies in its queue until a client takes it: a
transaction that is done, or an acknowledgement outside of transactions. Rule (G8): a message that was refused came nowhere.

With the log more can be said, also of a message that was neither confirmed nor refused: once it came, only a client takes it away.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.evidence.client_log import Message
from understudy.client.verdicts.evidence.content import BY_CLIENTS, BY_ITSELF, Departure
from understudy.client.verdicts.evidence.history import place_of
from understudy.client.verdicts.violation import Kind, Violation


def lost(case: Case) -> list[Violation]:
    """Each message that must lie in a queue lies there, or was taken from there."""
    found = [
        Violation(
            kind=Kind.LOST,
            promise="G1",
            text=f"{message.id} of {name} was committed, no client took it, and it is not in {message.queue}",
            transaction=name,
            message=message.id,
            queue=message.queue,
            expected=f"in {message.queue}",
            found="gone",
        )
        for name, message in _due(case)
        if not case.filled(place_of(message))
    ]
    found += [
        Violation(
            kind=Kind.LOST,
            promise="G4",
            text=f"{message_id} was confirmed, no client took it, and it is not in {queue}",
            message=message_id,
            queue=queue,
            expected=f"in {queue}",
            found="gone",
        )
        for message_id, queue in case.history.confirmed
        if case.judged(queue) and not case.filled((message_id, queue))
    ]
    return found


def lost_in_log(case: Case) -> list[Violation]:
    """A message that was committed and not consumed came to its queue and has not left it; a confirmed message came.

    Of a message that left its queue, the log says that a client took it.
    """
    log, found = case.log, []
    if log is None:
        return []
    for name, message in _due(case):
        if message.id not in log.came:
            text = f"{message.id} was committed and never came to {message.queue}"
            found.append(
                Violation(
                    kind=Kind.LOST,
                    promise="G1",
                    text=text,
                    transaction=name,
                    message=message.id,
                    queue=message.queue,
                    expected=f"in {message.queue}",
                    found="never came",
                )
            )
            continue
        left = log.left.get(message.id)
        if left and place_of(message) not in case.takers and place_of(message) not in case.history.taken:
            text = f"{message.id} was never consumed and left {message.queue}: {_told(left[0])}"
            found.append(
                Violation(
                    kind=Kind.LOST,
                    promise="G1",
                    text=text,
                    transaction=name,
                    message=message.id,
                    queue=message.queue,
                    expected=f"in {message.queue}",
                    found=_told(left[0]),
                )
            )
    found += [
        Violation(
            kind=Kind.LOST,
            promise="G4",
            text=f"{message_id} was confirmed and never was in the log",
            message=message_id,
            queue=queue,
            expected="in the log",
            found="never came",
        )
        for message_id, queue in case.history.confirmed
        if message_id not in log.came
    ]
    return found


def left_alone(case: Case) -> list[Violation]:
    """A message that left a judged queue was taken by a client, or its journal did not keep it through a restart."""
    found: list[Violation] = []
    if case.log is None:
        return found
    for message_id, departures in case.log.left.items():
        for each in departures:
            if not case.judged(each.queue):
                continue
            if each.reason in BY_CLIENTS and (message_id, each.queue) not in case.history.taken:
                found.append(
                    Violation(
                        kind=Kind.LOST,
                        promise="G4",
                        text=f"{message_id} left {each.queue} at {each.offset}, and no client took it",
                        message=message_id,
                        queue=each.queue,
                        expected="taken by a client",
                        found=_told(each),
                    )
                )
            elif each.reason not in BY_CLIENTS + BY_ITSELF:
                found.append(
                    Violation(
                        kind=Kind.LOST,
                        promise="G4",
                        text=f"{message_id} left {each.queue} at {each.offset} for reason {each.reason}",
                        message=message_id,
                        queue=each.queue,
                        expected="taken by a client",
                        found=_told(each),
                    )
                )
    return found


def refused(case: Case) -> list[Violation]:
    """A refused message lies in no queue."""
    return [
        Violation(
            kind=Kind.REFUSED,
            promise="G8",
            text=f"{message_id} was refused and lies in {queue}",
            message=message_id,
            queue=queue,
            expected="nowhere",
            found=f"in {queue}",
        )
        for message_id, queue in case.history.refused
        if (message_id, queue) in case.lying
    ]


def refused_in_log(case: Case) -> list[Violation]:
    """A refused message never came to any queue."""
    log = case.log
    if log is None:
        return []
    return [
        Violation(
            kind=Kind.REFUSED,
            promise="G8",
            text=f"{message_id} was refused and is in the log",
            message=message_id,
            queue=queue,
            expected="nowhere",
            found="in the log",
        )
        for message_id, queue in case.history.refused
        if message_id in log.came
    ]


def _due(case: Case) -> Iterator[tuple[str, Message]]:
    """(transaction, message) of everything that committed transactions made for queues that are judged."""
    for tx in case.history.transactions.values():
        if tx.committed:
            for message in tx.makes:
                if case.judged(message.queue):
                    yield tx.name, message


def _told(departure: Departure) -> str:
    return f"{departure.reason} at {departure.offset}"
