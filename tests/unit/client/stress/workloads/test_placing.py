"""The judgement of the workload ``deadletters``: what is allowed of each kind of queue, and what is a violation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.client.verdicts.logs import Logs
from understudy.client.stress.workloads.dead_letter_kinds import (
    ARGUMENTS,
    DELAYS_MS,
    KINDS,
    MOST,
    RECEIPTS,
    REJECTED_WITHIN,
    Fate,
    delay_ms_of,
    fate_of,
)
from understudy.client.stress.workloads.dead_letters import PREFETCH
from understudy.client.stress.workloads.placing import figures, placed
from understudy.client.verdicts import COMMITTED, ROLLED_BACK, BrokerContent, Case, Event, Message

WITHIN, WITHIN_DEAD = REJECTED_WITHIN.queues


class Books(Logs):
    """Logs of one publisher and one consumer, without the coins of other workloads."""

    def __init__(self) -> None:
        self._entries = []
        self._numbers = {}

    def case(self, **queues: Sequence[str]) -> Case:
        """``dl_expired_dead=["m/0"]``: what lies there."""
        content = {queue: queues.get(queue.replace("-", "_"), ()) for queue in ARGUMENTS}
        read = {queue: [Message(each, queue) for each in ids] for queue, ids in content.items()}
        return Case(history=self.history, content=BrokerContent.of("a client", read))

    def wrong(self, **queues: Sequence[str]) -> list[tuple[str, str]]:
        """Kind and subject of each violation."""
        return sorted({(each.kind.value, each.subject) for each in placed(self.case(**queues))})


def named(fate: Fate) -> str:
    """An id of a message that consumers treat so."""
    return next(name for number in range(100) if fate_of(name := f"p-{number}/0") is fate)


@pytest.mark.parametrize(
    ("queues", "wrong"),
    [
        ({"dl_expired_dead": ["p-0/0"]}, []),
        ({"dl_expired": ["p-0/0"]}, []),
        ({}, [("lost", "p-0/0")]),
        ({"dl_expired_late": ["p-0/0"], "dl_expired_dead": ["p-0/0"]}, [("doubled", "p-0/0")]),
        ({"dl_expired_dead": ["p-0/0", "p-0/0"]}, [("doubled", "p-0/0")]),
        ({"dl_overflow_dead": ["p-0/0"]}, [("altered", "p-0/0"), ("lost", "p-0/0")]),
        ({"dl_expired_dead": ["p-0/0", "p-1/0"]}, [("foreign", "p-1/0")]),
    ],
)
def test_a_message_is_in_exactly_one_place(queues: dict[str, list[str]], wrong: list[tuple[str, str]]) -> None:
    books = Books()
    books.plain(Message("p-0/0", "dl-expired"))
    assert books.wrong(**queues) == wrong


def test_what_no_client_was_promised_may_be_nowhere() -> None:
    books = Books()
    books.plain(Message("p-0/0", "dl-expired"), told=None)
    books.tx("t", [], [Message("t/0", "dl-expired"), Message("t/1", "dl-overflow")], ROLLED_BACK)
    assert books.wrong() == []
    assert books.wrong(dl_expired_dead=["p-0/0", "t/0"]) == [("partial", "t"), ("uncommitted", "t/0")]


@pytest.mark.parametrize(
    ("queue", "lying", "wrong"),
    [
        ("dl-refused", {}, []),
        ("dl-refused", {"dl_refused": ["p-0/0"]}, [("refused", "p-0/0")]),
        ("dl-refused-dlx", {}, []),
        ("dl-refused-dlx", {"dl_refused_dlx_dead": ["p-0/0"]}, []),
        ("dl-refused-dlx", {"dl_refused_dlx": ["p-0/0"]}, [("refused", "p-0/0")]),
    ],
)
def test_what_was_refused_is_where_its_rule_allows(
    queue: str, lying: dict[str, list[str]], wrong: list[tuple[str, str]]
) -> None:
    books = Books()
    books.plain(Message("p-0/0", queue), told=Event.REFUSED)
    assert books.wrong(**lying) == wrong


def test_a_confirmed_message_is_no_refused_one() -> None:
    books = Books()
    books.plain(Message("p-0/0", "dl-refused-dlx"))
    assert books.wrong(dl_refused_dlx=["p-0/0"]) == []
    assert books.wrong(dl_refused_dlx_dead=["p-0/0"]) == [("altered", "p-0/0")]


def test_a_message_is_dropped_by_a_rule_alone() -> None:
    books = Books()
    names = [f"p-{number}/0" for number in range(MOST + 1)]
    for name in names:
        books.plain(Message(name, "dl-dropped"))
    books.plain(Message("q-0/0", "dl-cycle"), client="q")
    assert books.wrong(dl_dropped=names[1:]) == []
    assert books.wrong(dl_dropped=names[2:]) == [("lost", names[0]), ("lost", names[1])]
    assert books.wrong(dl_dropped=names[:-1]) == [("lost", names[-1])]  # the newest is not at the head
    books.plain(Message("r-0/0", "dl-dropped"), client="r")
    assert books.wrong(dl_dropped=[*names[2:], "r-0/0"]) == []


def test_a_limit_holds_but_for_what_consumers_held() -> None:
    books = Books()
    names = [f"p-{number:02}/0" for number in range(MOST + PREFETCH + 1)]
    for name in names:
        books.plain(Message(name, "dl-overflow"))
    rest = {"dl_overflow_dead": names[MOST:]}
    assert books.wrong(dl_overflow=names[:MOST], **rest) == []
    assert books.wrong(dl_overflow=names[: MOST + 1], dl_overflow_dead=names[MOST + 1 :]) == [
        ("miscounted", "dl-overflow")
    ]
    books.got(Message(names[0], "dl-overflow"))
    assert books.wrong(dl_overflow=names[: MOST + PREFETCH], dl_overflow_dead=names[MOST + PREFETCH :]) == []
    assert books.wrong(dl_overflow=names) == [("miscounted", "dl-overflow")]


def test_a_message_that_no_consumer_rejects_is_no_dead_letter() -> None:
    kept, rejected = named(Fate.ACKNOWLEDGED), named(Fate.REJECTED)
    books = Books()
    for name in sorted({kept, rejected}, key=lambda each: int(each[2:-2])):
        books.plain(Message(name, "dl-rejected"))
    assert books.wrong(dl_rejected_dead=[rejected], dl_rejected=[kept]) == []
    assert books.wrong(dl_rejected_dead=[rejected, kept]) == [("altered", kept)]


@pytest.mark.parametrize(
    ("told", "there", "wrong"),
    [
        (COMMITTED, {WITHIN_DEAD: 1}, []),
        (COMMITTED, {}, ["lost"]),
        (COMMITTED, {WITHIN_DEAD: 2}, ["doubled"]),
        (COMMITTED, {WITHIN: 1, WITHIN_DEAD: 1}, ["doubled", "partial"]),
        (ROLLED_BACK, {WITHIN: 1}, []),
        (ROLLED_BACK, {WITHIN_DEAD: 1}, ["lost", "uncommitted"]),
    ],
)
def test_a_rejection_in_a_transaction_takes_effect_with_its_commit(
    told: str, there: dict[str, int], wrong: list[str]
) -> None:
    name = named(Fate.REJECTED)
    books = Books()
    books.plain(Message(name, WITHIN))
    books.got(Message(name, WITHIN))
    books.tx("t", [Message(name, WITHIN)], [Message("t/0", RECEIPTS)], told)
    queues = {queue.replace("-", "_"): [name] * times for queue, times in there.items()}
    queues[RECEIPTS.replace("-", "_")] = ["t/0"] if told == COMMITTED else []
    assert sorted({kind for kind, _ in books.wrong(**queues)}) == wrong


DELAYED = ("dl-later", "dl-by-exchange")


@pytest.mark.parametrize("queue", DELAYED)
@pytest.mark.parametrize("in_tx", [False, True])
@pytest.mark.parametrize(("late_ms", "wrong"), [(0, []), (900, []), (-1, []), (-3, ["early"]), (-2_000, ["early"])])
def test_a_delayed_message_comes_to_no_client_before_its_time(
    queue: str, in_tx: bool, late_ms: int, wrong: list[str]
) -> None:
    name = named(Fate.REJECTED)
    message = Message(name, queue)
    books = Books()
    books.clock_s = 50.0
    if in_tx:
        books.entry(Event.BEGAN, "p", tx="t")
        books.entry(Event.SENT, "p", tx="t", messages=(message,))
        books.clock_s = 70.0  # the delay counts from the commit
        books.entry(Event.COMMIT_SENT, "p", tx="t")
        books.clock_s += 5
        books.entry(Event.COMMITTED, "p", tx="t")
    else:
        books.plain(message)
    sent_s = 70.0 if in_tx else 50.0
    delay_ms = delay_ms_of(name, queue)
    assert DELAYS_MS[0] <= delay_ms < DELAYS_MS[1]
    books.clock_s = sent_s + (delay_ms + late_ms) / 1_000
    books.got(message)
    books.clock_s += 10
    books.got(message, fresh=False)
    dead = {f"{queue.replace('-', '_')}_dead": [name]}
    assert [kind for kind, _ in books.wrong(**dead)] == wrong
    assert figures(books.case(**dead))[queue]["late_ms_median"] == late_ms
    assert {kind for kind, _ in books.wrong()} >= {*wrong, "lost"}


def test_only_what_is_published_with_a_delay_may_be_early() -> None:
    books = Books()
    books.plain(Message("p-0/0", "dl-rejected"))
    books.got(Message("p-0/0", "dl-rejected"))
    assert books.wrong(dl_rejected=["p-0/0"]) == []
    assert not any(delay_ms_of("p-0/0", kind.name) for kind in KINDS if kind.name not in DELAYED)


def test_the_figures_count_each_message_once() -> None:
    books = Books()
    for number in range(3):
        books.plain(Message(f"p-{number}/0", "dl-expired"))
    books.plain(Message("p-3/0", "dl-refused"), told=Event.REFUSED)
    books.tx("t", [], [Message("t/0", "dl-cycle")], COMMITTED)
    counts = figures(books.case(dl_expired_dead=["p-0/0", "p-1/0"]))
    assert counts.keys() == {kind.name for kind in KINDS}
    assert counts["dl-expired"] == {
        "published": 3, "promised": 3, "refused": 0, "dl-expired": 0, "dl-expired-late": 0, "dl-expired-dead": 2, "taken": 0,
        "dropped": 1,
    }  # fmt: skip
    assert counts["dl-refused"]["refused"] == 1
    assert counts["dl-cycle"]["dropped"] == 1
