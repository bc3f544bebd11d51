"""The precheck: would a commit on this channel be refused now?

A client asks by a message to the reserved exchange ``understudy.tx``: ``precheck``, or ``precheck acks`` if it brings no more
messages, so that what makes room is not refused for want of room. The answer is ``ok`` or ``refused: REASON``. It speaks of
all that the channel has sent before the question, and ends nothing. On a channel that works on branches it speaks of the
next branch; those that there are, are refused by their PREPARE.

A refusal is answered at once. An ``ok`` leaves as the answer to an empty commit does: when a record appended since the
question is stable. So a broker that was replaced, or reaches no listed member, says nothing.

``ok`` is no promise: the set may shrink, or the disk fill, before the commit comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from understudy.broker.transactions.tx_buffer import TxBuffer

if TYPE_CHECKING:
    from understudy.broker.core.broker_port import BrokerPort
    from understudy.broker.core.requests.port import AsksOutcomes
    from understudy.broker.core.requests.reply import Reply

PRECHECKS: Final = {b"precheck": True, b"precheck acks": False}
"""Bodies of questions: True if messages are still to come."""
OK: Final = "ok"


def answer_precheck(broker: BrokerPort, channel: AsksOutcomes, reply: Reply, *, brings: bool) -> None:
    """Take one question. ``brings``: messages are still to come before the commit."""
    if not channel.may_commit:
        reply.send("error: the channel is not transactional")
        return
    if refused := channel.would_refuse(brings=brings):
        reply.send(f"refused: {refused}")
        return
    broker.completions.complete(broker.batch.provable(), lambda asked: _answer(broker, asked, brings), reply)


def refusal(broker: BrokerPort, tx: TxBuffer | None, *, brings: bool) -> str:
    """The reason why ``tx`` may not commit now, "" if it may; None is a transaction without operations."""
    return broker.commit_refused(tx if tx is not None else TxBuffer(0), brings=brings)


def _answer(broker: BrokerPort, reply: Reply, brings: bool) -> None:
    refused = refusal(broker, None, brings=brings)
    reply.send(f"refused: {refused}" if refused else OK)
