"""Lost: messages that must be in a queue and are not.

Rule (G1, G4): a message that a committed transaction made, or that was confirmed, lies in its queue until a client takes it: a
transaction that is done, or an acknowledgement outside of transactions. Rule (G8): a message that was refused came nowhere.

With the log more can be said, also of a message that was neither confirmed nor refused: once it came, only a client takes it away.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy.client.verdicts.case import Case
from understudy.client.verdicts.client_log import Message
from understudy.client.verdicts.content import BY_CLIENTS, BY_ITSELF, Departure
from understudy.client.verdicts.history import Place, place_of
from understudy.client.verdicts.violation import Kind, Violation


def lost(case: Case) -> list[Violation]:
    """What must lie in a queue lies there, or was taken from there."""
    found = [
        _lost(
            "G1",
            place_of(message),
            f"{message.id} of {name} was committed, no client took it, and it is not in {message.queue}",
            f"in {message.queue}",
            "gone",
            name,
        )
        for name, message in _due(case)
        if not case.filled(place_of(message))
    ]
    found += [
        _lost(
            "G4",
            (message_id, queue),
            f"{message_id} was confirmed, no client took it, and it is not in {queue}",
            f"in {queue}",
            "gone",
        )
        for message_id, queue in case.history.confirmed
        if case.judged(queue) and not case.filled((message_id, queue))
    ]
    return found


def lost_in_log(case: Case) -> list[Violation]:
    """What committed and was not consumed came to its queue and has not left it; what was confirmed came.

    Of a message that left its queue, the log says that a client took it.
    """
    log, found = case.log, []
    if log is None:
        return []
    for name, message in _due(case):
        if message.id not in log.came:
            text = f"{message.id} was committed and never came to {message.queue}"
            found.append(_lost("G1", place_of(message), text, f"in {message.queue}", "never came", name))
            continue
        left = log.left.get(message.id)
        if left and place_of(message) not in case.takers and place_of(message) not in case.history.taken:
            text = f"{message.id} was never consumed and left {message.queue}: {_told(left[0])}"
            found.append(_lost("G1", place_of(message), text, f"in {message.queue}", _told(left[0]), name))
    found += [
        _lost(
            "G4",
            (message_id, queue),
            f"{message_id} was confirmed and never was in the log",
            "in the log",
            "never came",
        )
        for message_id, queue in case.history.confirmed
        if message_id not in log.came
    ]
    return found


def left_alone(case: Case) -> list[Violation]:
    """What left a judged queue was taken by a client, or went with a restart that its journal did not keep it through."""
    found: list[Violation] = []
    if case.log is None:
        return found
    for message_id, departures in case.log.left.items():
        for each in departures:
            if not case.judged(each.queue) or each.reason in BY_ITSELF:
                continue
            text = f"{message_id} left {each.queue} at {each.offset} for reason {each.reason}"
            if each.reason in BY_CLIENTS:
                if (message_id, each.queue) in case.history.taken:
                    continue
                text = f"{message_id} left {each.queue} at {each.offset}, and no client took it"
            found.append(_lost("G4", (message_id, each.queue), text, "taken by a client", _told(each)))
    return found


def refused(case: Case) -> list[Violation]:
    """What was refused lies in no queue."""
    return [
        _refused((message_id, queue), f"{message_id} was refused and lies in {queue}", f"in {queue}")
        for message_id, queue in case.history.refused
        if (message_id, queue) in case.lying
    ]


def refused_in_log(case: Case) -> list[Violation]:
    """What was refused never came to any queue."""
    log = case.log
    if log is None:
        return []
    return [
        _refused((message_id, queue), f"{message_id} was refused and is in the log", "in the log")
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


def _lost(promise: str, place: Place, text: str, expected: str, found: str, tx: str = "") -> Violation:
    message, queue = place
    return Violation(
        kind=Kind.LOST,
        promise=promise,
        text=text,
        transaction=tx,
        message=message,
        queue=queue,
        expected=expected,
        found=found,
    )


def _refused(place: Place, text: str, found: str) -> Violation:
    message, queue = place
    return Violation(
        kind=Kind.REFUSED, promise="G8", text=text, message=message, queue=queue, expected="nowhere", found=found
    )


def _told(departure: Departure) -> str:
    return f"{departure.reason} at {departure.offset}"
