"""Promises of which a feed has no evidence, since it tells nothing of its clients. Pure: tallies in, sentences out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from understudy.pipeline.tallies.look import NAMED, PARTED, PLAIN, Tally, primaries
from understudy.pipeline.tallies.reigns import LEADS, reigns

_COMMITTED: Final = "committed"
_TAKEN: Final = ("", f"{PLAIN} acknowledged", f"{PLAIN} rejected")
"""`said` of dequeues of what clients have taken."""
_DETAIL: Final = '([feed] detail = "messages")'


def untold(tallies: Sequence[Tally]) -> list[str]:
    """A sentence for each promise of which there is no evidence. Each primary has its own setting of what it tells."""
    found = [
        text
        for founding in sorted({each.founding or "" for each in tallies})
        for text in _of_founding(founding, tallies)
    ]
    return found + [
        f"{each.primary}: nothing of what clients were told in epoch {each.epoch} is in its feed {_DETAIL}:"
        f" {each.commits} transactions were prepared and committed there"
        for each in reigns(tallies)
        if each.is_silent
    ]


def _of_founding(founding: str, tallies: Sequence[Tally]) -> Iterator[str]:
    """Of one founding: its records say what clients must have been told, or given."""
    records: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    told: dict[tuple[str, str], int] = defaultdict(int)
    for each in tallies:
        if (each.founding or "") == founding:
            kind = each.event or "", each.said
            told[kind] += each.events
            told[each.event or "", "any"] += each.events
            records[kind[0], "" if kind[0] in ("commit", "prepare") else kind[1]][each.broker or ""] += each.events
    most = {kind: max(by_broker.values()) for kind, by_broker in records.items()}  # brokers have about the same
    commits, plain = most.get(("commit", ""), 0), most.get(("enqueue", PLAIN), 0)
    taken = sum(most.get(("dequeue", said), 0) for said in _TAKEN)
    answers = told["told", "any"] + told["confirm", "any"]
    of = f"founding {founding}: " if founding else ""
    if (commits or plain or taken or most.get(("prepare", ""), 0)) and not answers and not told["deliver", "any"]:
        yield f"{of}nothing of what clients were told is in the feed {_DETAIL}: G3, G4, G8 and G9 need it"
        return
    if (commits or plain) and not answers:
        yield f"{of}no client was told that anything is safe {_DETAIL}: of G4 and G8 there is no evidence"
    elif commits > most.get(("enqueue", PARTED), 0) and not (told["told", _COMMITTED] or told["told", NAMED]):
        yield f"{of}no client was told that a transaction is committed, and {commits} are: of G8 there is no evidence"
    if taken and not told["deliver", "any"]:
        yield f"{of}no message was delivered, and clients have taken some {_DETAIL}: of G3 and G9 there is no evidence"


@attrs.frozen(kw_only=True)
class Tail:
    """The end of a primary's facts of its epoch, beside what others know of that epoch.

    Attributes:
        facts_end: the end of the log that the last fact states of the process that led.
        known: the log up to here was stable when the primary closed its last batch that another broker has. A message that was
            taken up to here was delivered in an earlier turn. An answer may be of the turn of that batch.
        commits: COMMIT records behind ``facts_end``, at most.
    """

    founding: str
    epoch: int
    primary: str
    facts_end: int
    known: int
    commits: int


def tails(tallies: Sequence[Tally]) -> list[Tail]:
    """Of each primary that has facts in its epoch."""
    ends: dict[tuple[str, int, str], dict[str, int]] = defaultdict(dict)
    led: set[tuple[str, int, str, str]] = set()
    others: dict[tuple[str, int], list[Tally]] = defaultdict(list)
    for each in tallies:
        epoch = each.founding or "", each.epoch or 0
        if each.event == "end":
            continue  # the reader's own, and in no digest: its offset is no evidence
        if (each.incarnation or "").startswith("p"):
            process, of = each.incarnation or "", ends[*epoch, each.broker or ""]
            of[process] = max(of.get(process, 0), each.high or 0)
            if each.event in LEADS:
                led.add((*epoch, each.broker or "", process))
        elif each.event in ("append", "commit"):
            others[epoch].append(each)
    found = []
    for founding, epoch_number, primary, _ in primaries(tallies):
        reign = founding, epoch_number, primary
        # A process that begins later, and follows, tells facts at this epoch too, until it hears of the next one.
        of_leader = [end for process, end in ends[reign].items() if (*reign, process) in led]
        end = max(of_leader or ends[reign].values(), default=None)
        if end is not None:
            of_others = [each for each in others[founding, epoch_number] if each.broker != primary]
            known, commits = _known(of_others), _commits(of_others, end)
            tail = Tail(
                founding=founding, epoch=epoch_number, primary=primary, facts_end=end, known=known, commits=commits
            )
            found.append(tail)
    return found


def _known(others: Sequence[Tally]) -> int:
    return max((each.stable or 0 for each in others if each.event == "append"), default=0)


def _commits(others: Sequence[Tally], end: int) -> int:
    """Of the broker that has most of them; none if nothing behind ``end`` is known to be stable."""
    if _known(others) <= end:
        return 0
    behind: dict[str, int] = defaultdict(int)
    for each in others:
        if each.event == "commit" and (each.high or 0) > end:
            behind[each.broker or ""] += each.events
    return max(behind.values(), default=0)
