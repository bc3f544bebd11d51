"""Differing: brokers that hold different things.

Rule (G2): when everything is settled, all brokers hold the same messages in the same order, in every replicated queue. Rule
(counts): a queue holds as many messages as its broker states.
"""

from __future__ import annotations

from collections.abc import Sequence

from understudy.client.verdicts.evidence.content import BrokerContent, QueueContent
from understudy.client.verdicts.violation import Kind, Violation


def differing(brokers: Sequence[BrokerContent]) -> list[Violation]:
    """Any two brokers agree on a queue in all that is known: that it exists, count, digest, ids in order."""
    found = []
    for queue in sorted({name for broker in brokers for name in broker.queues}):
        contents = [(broker.broker, broker.queues.get(queue)) for broker in brokers]
        if not _same([content for _, content in contents]):
            stated = ", ".join(f"{broker} {_brief(content)}" for broker, content in contents)
            first = contents[0][1]
            other = next((each for each in contents if not _same([first, each[1]])), contents[-1])
            found.append(
                Violation(
                    kind=Kind.DIFFERING,
                    promise="G2",
                    text=f"brokers differ in {queue}: {stated}",
                    queue=queue,
                    broker=other[0],
                    expected=f"{contents[0][0]} {_brief(first)}",
                    found=f"{other[0]} {_brief(other[1])}",
                )
            )
    return found


def miscounted(content: BrokerContent, brokers: Sequence[BrokerContent] = ()) -> list[Violation]:
    """Each queue of ``content`` holds as many messages as are stated there, and as each of ``brokers`` states of it."""
    found = []
    for name, queue in content.queues.items():
        if queue.messages is None:
            continue
        here = len(queue.messages)
        stated = [("queue.declare-ok", queue), *[(broker.broker, broker.queues.get(name)) for broker in brokers]]
        found += [
            Violation(
                kind=Kind.MISCOUNTED,
                promise="counts",
                text=f"{name} holds {here} messages, {who} says {_brief(content)}",
                queue=name,
                broker=who,
                expected=str(here),
                found=_brief(content),
            )
            for who, content in stated
            if content is None or content.count != here
        ]
    return found


def _same(contents: Sequence[QueueContent | None]) -> bool:
    there = [content for content in contents if content is not None]
    if len(there) != len(contents):
        return not there
    digests = {content.digest for content in there if content.digest}
    orders = {tuple(m.id for m in content.messages) for content in there if content.messages is not None}
    return len({content.count for content in there}) <= 1 and len(digests) <= 1 and len(orders) <= 1


def _brief(content: QueueContent | None) -> str:
    if content is None:
        return "nothing"
    return f"{content.count} ({content.digest[:12]})" if content.digest else str(content.count)
