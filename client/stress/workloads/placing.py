"""Placing: at the end of ``deadletters`` each message is in exactly one place, or a client took it, or a rule has dropped it.

The queues of a kind are one place to the verdicts: what clients were told decides whether a message must be there. So a message in
two of them is doubled, and one that is in none and that no client took is lost. The order within a queue is judged in the queue
that clients publish to. What this file adds:

- A limit holds, but for what consumers had in their hands and gave back.
- A message is dropped only by the rule of its kind; by drop-head, only while the queue is full, and before what came later.
- A message that no consumer may reject is no rejected message, and a confirmed message is no refused one.
- A rejection in a transaction takes effect exactly if the transaction committed.
- A delayed message comes to no client before its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import floor

import attrs

from understudy.client.stress.workloads.dead_letter_kinds import (
    ARGUMENTS,
    KINDS,
    Drop,
    Fate,
    Kind,
    delay_ms_of,
    fate_of,
)
from understudy.client.stress.workloads.dead_letters import PREFETCH
from understudy.client.verdicts.disorder import stale, unordered
from understudy.client.verdicts.early import early, least_late_ms
from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.evidence.client_log import Message
from understudy.client.verdicts.evidence.content import BrokerContent, QueueContent
from understudy.client.verdicts.judging import QUEUE_VERDICTS
from understudy.client.verdicts.violation import Kind as Wrong
from understudy.client.verdicts.violation import Violation

OF_FIRST_QUEUES = (unordered, stale)
"""Verdicts of one queue: a message that has moved is in another order, and was not handed out of its new queue."""


def placed(case: Case) -> list[Violation]:
    """Every violation of a run of ``deadletters``.

    Args:
        case: with what lies in each queue.
    """
    together, firsts = _together(case), _firsts(case)
    found = [
        each
        for verdict in QUEUE_VERDICTS
        for each in verdict(firsts if verdict in OF_FIRST_QUEUES else together)
        if not _documented(each, case)
    ]
    found += early(case, delay_ms_of)
    for kind in KINDS:
        found += _limit(kind, case) + _without_cause(kind, case)
        if kind.rejected_within:
            found += _within(kind, case, together)
    return found


def figures(case: Case) -> dict[str, dict[str, int]]:
    """By kind: how many messages clients published, and where these are at the end."""
    together = _together(case)
    unclear = {place for tx in case.history.transactions.values() if tx.rolled_back for place in _places(tx.makes)}
    counts: dict[str, dict[str, int]] = {}
    for kind in KINDS:
        made = {place for place in together.made if place[1] == kind.name} - unclear
        promised = {place for place in case.history.confirmed if place[1] == kind.name}
        promised |= {
            place for tx in case.history.transactions.values() if tx.committed for place in _places(tx.makes)
        } & made
        lying = {queue: case.content.queues[queue].count for queue in kind.queues if queue in case.content.queues}
        counts[kind.name] = {
            "published": len(made),
            "promised": len(promised),
            "refused": sum(queue == kind.name for _, queue in case.history.refused),
            **lying,
            "taken": len({place for place in made if together.takers.get(place) or place in case.history.taken}),
            "dropped": sum(not together.filled(place) for place in promised),
            **_lateness(kind, case),
        }
    return counts


def _lateness(kind: Kind, case: Case) -> dict[str, int]:
    """Of delayed messages that consumers got: how long after they were due, in ms, at least and in the median."""
    late = sorted(ms for place, ms in least_late_ms(case, delay_ms_of).items() if place[1] == kind.name)
    return {"late_ms_least": floor(late[0]), "late_ms_median": round(late[len(late) // 2])} if late else {}


def _together(case: Case) -> Case:
    """All queues of a kind as one; without what was rejected in transactions, which has left its place."""
    found: dict[str, list[Message]] = {}
    homes = {queue: kind for kind in KINDS for queue in kind.queues}
    for queue, content in case.content.queues.items():
        kind = homes.get(queue)
        if kind is None or not (kind.rejected_within and queue == kind.last):
            place = queue if kind is None else kind.name
            found.setdefault(place, []).extend(each._replace(queue=place) for each in content.messages or ())
    return attrs.evolve(case, content=BrokerContent.of(case.content.broker, found))


def _firsts(case: Case) -> Case:
    """The queues that clients publish to."""
    names = ARGUMENTS.keys() - {queue for kind in KINDS for queue in kind.queues if queue != kind.name}
    queues = {name: content for name, content in case.content.queues.items() if name in names}
    return attrs.evolve(case, content=BrokerContent(broker=case.content.broker, queues=queues))


def _documented(violation: Violation, case: Case) -> bool:
    """True if the rule of the message's kind allows it."""
    kind = next((kind for kind in KINDS if kind.name == violation.queue), None)
    if kind is None:
        return False
    if violation.kind is Wrong.REFUSED:
        return kind.refusal_moves and violation.message not in _ids(case, kind.name)
    if violation.kind is not Wrong.LOST:
        return False
    return kind.drops is Drop.CYCLE or (kind.drops is Drop.HEAD and _at_the_head(violation.message, kind, case))


def _at_the_head(message_id: str, kind: Kind, case: Case) -> bool:
    """True if the full queue may have dropped the message: of its client nothing lies there that came before."""
    content, sent = _content(case, kind.name), case.history.sent
    dropped = sent.get((message_id, kind.name))
    there = [sent[place] for each in content.messages or () if (place := (each.id, kind.name)) in sent]
    return (
        content.count == kind.most
        and dropped is not None
        and all(each.client != dropped.client or each.number > dropped.number for each in there)
    )


def _limit(kind: Kind, case: Case) -> list[Violation]:
    held = _content(case, kind.name).count
    if kind.most is None:
        return []
    clients = {receipt.client for receipt in case.history.received if receipt.message.queue == kind.name}
    most = kind.most + PREFETCH * len(clients)
    if held <= most:
        return []
    return [
        Violation(
            kind=Wrong.MISCOUNTED,
            promise="counts",
            text=f"{kind.name} holds {held} messages; its limit is {kind.most}, and consumers held {most - kind.most} at most",
            queue=kind.name,
            expected=f"{most} at most",
            found=str(held),
        )
    ]


def _without_cause(kind: Kind, case: Case) -> list[Violation]:
    """Messages of the last queue that nothing moves: no consumer rejects them, or the first queue has taken them."""
    if kind.refusal_moves:
        return [
            _wrong(
                Wrong.ALTERED,
                message_id,
                kind.last,
                "was refused, though its client was told that it is safe",
                "elsewhere",
            )
            for message_id in _ids(case, kind.last)
            if (message_id, kind.name) in case.history.confirmed
        ]
    if not kind.consumed or kind.counted or kind.last == kind.name:
        return []
    return [
        _wrong(Wrong.ALTERED, message_id, kind.last, "was rejected, and no consumer rejects it", "never rejected")
        for message_id in _ids(case, kind.last)
        if fate_of(message_id) is Fate.ACKNOWLEDGED
    ]


def _within(kind: Kind, case: Case, together: Case) -> list[Violation]:
    """Violations of the last queue: it has each message that a committed transaction rejected once, and no other."""
    due = {
        message_id
        for message_id, queue in together.takers
        if queue == kind.name and fate_of(message_id) is not Fate.ACKNOWLEDGED
    }
    there = _ids(case, kind.last)
    found = [
        _wrong(
            Wrong.LOST, message_id, kind.last, "was rejected by a transaction that committed, and is not there", "there"
        )
        for message_id in sorted(due - there.keys())
    ]
    found += [
        _wrong(
            Wrong.UNCOMMITTED,
            message_id,
            kind.last,
            "is there, and no transaction that committed rejected it",
            "nowhere",
        )
        for message_id in sorted(there.keys() - due)
    ]
    found += [
        _wrong(Wrong.DOUBLED, message_id, kind.last, f"is there {times} times", "once")
        for message_id, times in there.items()
        if times > 1
    ]
    return found


def _wrong(wrong: Wrong, message_id: str, queue: str, what: str, expected: str) -> Violation:
    text = f"{message_id} of {queue} {what}"
    return Violation(
        kind=wrong, promise="G1", text=text, message=message_id, queue=queue, expected=expected, found=what
    )


def _content(case: Case, queue: str) -> QueueContent:
    return case.content.queues.get(queue) or QueueContent.of(())


def _ids(case: Case, queue: str) -> Counter[str]:
    return Counter(message.id for message in _content(case, queue).messages or ())


def _places(messages: Iterable[Message]) -> set[tuple[str, str]]:
    return {(message.id, message.queue) for message in messages}
