"""Answers to outcome queries, which are messages to the reserved exchange ``understudy.tx``.

The questions are those of ``transactions/outcome_query.py``.

An answer leaves only after a record appended since the question is stable: every listed member has acknowledged in this
epoch by then, so no higher epoch has begun there, and a broker that was replaced cannot answer. A name that nobody knows is settled
by asking: an OUTCOME record bars it, and a late commit under it is refused. One under which a transaction has committed so long
ago that the outcome is no longer kept is expired, and may be used anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from understudy.broker.core.watching.told import Told
from understudy.broker.errors import PreconditionFailedError
from understudy.broker.transactions.outcome_query import NAME_BYTES, is_own_id, parse_tx_id, tx_id_text
from understudy.broker.transactions.outcomes import Outcome

if TYPE_CHECKING:
    from understudy.broker.core.commits.port import CommitsPort
    from understudy.broker.core.requests.reply import Reply

_TOLD: Final = frozenset(each.text for each in (Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.EXPIRED))
"""Answers that listeners hear of."""


class _Question:
    """A question for the outcome of ``subject``, and where the answer goes."""

    __slots__ = ("reply", "subject")

    def __init__(self, reply: Reply, subject: str) -> None:
        self.reply = reply
        self.subject = subject


def answer_query(broker: CommitsPort, own_id: int, reply: Reply, body: bytes) -> None:
    """Take one question.

    ``own_id`` is the asking channel's transaction id, 0 if the channel is not transactional.

    Raises:
        PreconditionFailedError: it is no question.
    """
    # A name counts to the octet: a client that asked for a changed name would be told "rolled back".
    verb, _, subject = body.partition(b" ")
    if body == b"id":
        reply.send(tx_id_text(own_id) if own_id else "error: the channel is not transactional")
    elif verb == b"outcome" and 1 <= len(subject) <= NAME_BYTES:
        _ask(broker, _Question(reply, subject.decode("utf-8", "surrogateescape")))
    else:
        text = body[:80].decode("utf-8", "replace")
        raise PreconditionFailedError(
            f"{text!r} is no question: 'id', 'outcome <id or name>', 'precheck' and 'precheck acks' are"
        )


def _ask(broker: CommitsPort, question: _Question) -> None:
    subject = question.subject
    unknown_name = (
        not is_own_id(subject)
        and broker.state.applying.outcomes.named(subject) is None
        and broker.transactions.named(subject) is None
        and not broker.name_bars.is_barred(subject)
        and subject not in broker.state.applying.outcomes.forgotten
    )
    offset = broker.name_bars.bar(subject) if unknown_name else broker.batch.barrier()
    broker.completions.complete(offset, lambda asked: _answer(broker, asked), question)


def _answer(broker: CommitsPort, question: _Question) -> None:
    subject = question.subject
    if is_own_id(subject):
        text = _own_outcome(broker, subject)
        _reply(broker, question, text)
        return
    if not broker.name_bars.is_barred(subject):
        broker.name_bars.forget(subject)
    outcome = broker.state.applying.outcomes.named(subject)
    if outcome is None:  # a barred name would be known by now
        if broker.transactions.named(subject) is not None:
            outcome = Outcome.PENDING
        elif subject in broker.state.applying.outcomes.forgotten:
            outcome = Outcome.EXPIRED
        else:
            _ask(broker, question)  # it ended meanwhile without an outcome under its name: bar the name first
            return
    _reply(broker, question, outcome.text)


def _reply(broker: CommitsPort, question: _Question, outcome: str) -> None:
    published = question.reply.send(outcome)
    if published and broker.hooks.on_told and outcome in _TOLD:
        broker.hooks.tell_outcome(Told("outcome", outcome, None, None, question.subject))


def _own_outcome(broker: CommitsPort, text: str) -> str:
    tx_id = parse_tx_id(text)
    tx = broker.state.transactions.get(tx_id)
    if tx_id in broker.transactions.open_ids or (tx is not None and tx.closed_undecided):
        return Outcome.PENDING.text
    outcome = broker.state.applying.outcomes.of_id(tx_id, broker.transactions.newest_id)
    return outcome.text if outcome is not None else f"error: transaction {text} was never opened"
