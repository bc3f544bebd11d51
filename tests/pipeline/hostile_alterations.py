"""Alterations by a hand that knows how a feed states its digests: its rows, its ends and its segments agree with each other.

Each takes a copy of a base feed (`base_feeds`), and changes it as `named_alterations` do. `forged` states all digests anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Final

from tests.pipeline.alterations import Alteration, altered
from tests.pipeline.base_feeds import Feed
from tests.pipeline.named_alterations import (
    a_message_has_another_routing_key_on_one,
    events,
    is_fact,
    primary,
    the_end_of_the_primarys_feed_is_gone,
)
from tests.pipeline.restated import closed

FORGED: Final[list[Alteration]] = []
UNSEEN: Final[list[Alteration]] = []
"""Those that no feed can show: docs/pipeline.md, What a feed cannot show."""


def note(where: list[Alteration]) -> Callable[[Callable[[Feed], None]], Callable[[Feed], None]]:
    """Note an alteration under its function's name."""

    def noted(put: Callable[[Feed], None]) -> Callable[[Feed], None]:
        where.append(Alteration("", put.__name__.replace("_", " "), put))
        return put

    return noted


def forged(base: Feed, alteration: Alteration) -> Feed:
    """A copy of ``base``, altered, in which each stream states what it has now: counts, digests and ends."""
    return {broker: closed(rows) for broker, rows in altered(base, alteration).items()}


def led_first(feed: Feed) -> str:
    """The primary of the first epoch."""
    return str(min(events(feed, "epoch"), key=lambda event: int(event["epoch"]))["primary"])


def processes(feed: Feed, broker: str) -> list[str]:
    """Names of the streams of its facts, in their order."""
    return list(dict.fromkeys(event["incarnation"] for event in feed[broker] if is_fact(event)))


def cut_facts(feed: Feed, broker: str, kept: float) -> None:
    """Of the facts that a primary has told while it led, that part stays which comes first."""
    told = [event for event in feed[broker] if is_fact(event) and event["event"] in ("told", "confirm", "deliver")]
    stream = [each for each in feed[broker] if each["incarnation"] == told[-1]["incarnation"]]
    first = stream.index(told[round(kept * (len(told) - 1))])
    gone = {id(each) for each in stream[first + 1 :]}
    feed[broker] = [each for each in feed[broker] if id(each) not in gone]


@note(FORGED)
def the_facts_of_the_last_primary_end_early(feed: Feed) -> None:
    cut_facts(feed, primary(feed), 0.3)


@note(FORGED)
def the_facts_of_the_first_primary_end_early(feed: Feed) -> None:
    cut_facts(feed, led_first(feed), 0.3)


@note(FORGED)
def the_facts_of_two_processes_stand_under_one_name(feed: Feed) -> None:
    broker = led_first(feed)
    first, second = processes(feed, broker)[:2]
    for event in feed[broker]:
        if event["incarnation"] == second:
            event["incarnation"] = first


@note(FORGED)
def the_first_facts_of_a_process_are_gone(feed: Feed) -> None:
    broker = primary(feed)
    name = processes(feed, broker)[0]
    facts = [event for event in feed[broker] if event["incarnation"] == name]
    gone = {id(event) for event in facts[:3]}
    feed[broker] = [event for event in feed[broker] if id(event) not in gone]


@note(FORGED)
def the_journals_before_a_replaced_directory_are_gone(feed: Feed) -> None:
    """Of the broker that has caught up from nothing: all segments that precede the last first one."""
    broker = next(name for name, some in feed.items() if _roots(some) > 1)
    roots = [e["incarnation"] for e in feed[broker] if e["event"] == "segment" and not e.get("previous")]
    follows: dict[str, str] = defaultdict(str)
    for event in feed[broker]:
        if event["event"] == "segment":
            follows[event["incarnation"]] = event.get("previous", "")

    def root(name: str) -> str:
        return root(follows[name]) if follows[name] else name

    feed[broker] = [e for e in feed[broker] if is_fact(e) or root(e["incarnation"]) == roots[-1]]


def _roots(some: list[dict[str, object]]) -> int:
    return sum(event["event"] == "segment" and not event.get("previous") for event in some)


note(FORGED)(the_end_of_the_primarys_feed_is_gone)
note(UNSEEN)(a_message_has_another_routing_key_on_one)


@note(UNSEEN)
def a_process_has_another_name(feed: Feed) -> None:
    broker = led_first(feed)
    name = processes(feed, broker)[0]
    for event in feed[broker]:
        if event["incarnation"] == name:
            event["incarnation"] = f"{name}99"
