"""Alterations that each make a certain promise false, or its evidence incomplete: what they are is said by their names.

Each takes a copy of a base feed and changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.pipeline.alterations import Alteration, Event
from tests.pipeline.base_feeds import Feed

NAMED: Final[list[Alteration]] = []
_OF_TX: Final = ("open", "enqueue", "dequeue", "close", "prepare", "assign", "commit", "apply", "rollback")


def named(*, closes: bool = True) -> Callable[[Callable[[Feed], None]], Callable[[Feed], None]]:
    """Note an alteration under its function's name; ``closes``: numbers of events are closed up behind it."""

    def note(put: Callable[[Feed], None]) -> Callable[[Feed], None]:
        NAMED.append(Alteration("", put.__name__.replace("_", " "), put, closes))
        return put

    return note


# -- means --------------------------------------------------------------------------------------------------------------


def events(feed: Feed, *names: str, **fields: Any) -> Iterator[Event]:
    """Of all brokers, those with one of the names and these fields."""
    for some in feed.values():
        for event in some:
            if event["event"] in names and all(event.get(name) == value for name, value in fields.items()):
                yield event


def drop(feed: Feed, of: Callable[[Event], bool], *brokers: str) -> None:
    """Without the events for which ``of`` is true; of ``brokers`` alone if some are named. Some must be there."""
    before = sum(map(len, feed.values()))
    for broker in brokers or tuple(feed):
        feed[broker] = [event for event in feed[broker] if not of(event)]
    assert sum(map(len, feed.values())) < before, "nothing to drop"


def is_fact(event: Event) -> bool:
    return bool(event["incarnation"].startswith("p"))


def middle(found: Iterator[Event]) -> Event:
    """The middle one of all."""
    some = list(found)
    return some[len(some) // 2]


def answer(feed: Feed) -> Event:
    """A `tx.commit-ok`."""
    return middle(events(feed, "told", answer="tx.commit-ok"))


def primary(feed: Feed) -> str:
    """Whose epoch is the newest."""
    return str(max(events(feed, "epoch"), key=lambda event: int(event["epoch"]))["primary"])


def backup(feed: Feed, event: Event) -> Event:
    """The same record of another broker than the last primary, in the part of its log that all brokers have by the log."""
    others = [broker for broker in feed if broker != primary(feed)]
    same = ("event", "epoch", "offset", "tx", "queue_id")
    copies = [each for broker in others for each in feed[broker] if all(each.get(n) == event.get(n) for n in same)]
    return copies[-1]


def behind(feed: Feed, event: Event, new: Event) -> None:
    """Put an event behind another one of the same broker."""
    some = feed[event["broker"]]
    some.insert(next(at for at, each in enumerate(some) if each is event) + 1, new)


# -- gone on all brokers while clients were told ------------------------------------------------------------------------


@named()
def a_transaction_of_which_a_client_was_told_is_nowhere(feed: Feed) -> None:
    tx = answer(feed)["tx"]
    drop(feed, lambda event: event["event"] in _OF_TX and event.get("tx") == tx)


@named()
def a_transaction_with_its_deliveries_is_nowhere(feed: Feed) -> None:
    tx = answer(feed)["tx"]
    ids = {(each["queue_id"], each["id"] + n) for each in events(feed, "assign", tx=tx) for n in range(each["count"])}
    later = ("deliver", "requeue", "dequeue")

    def goes(event: Event) -> bool:
        of_tx = event["event"] in _OF_TX and event.get("tx") == tx
        return of_tx or (event["event"] in later and (event["queue_id"], event["id"]) in ids)

    drop(feed, goes)


@named()
def the_messages_of_a_confirm_are_nowhere(feed: Feed) -> None:
    confirm = next(events(feed, "confirm", count=2))
    offsets = range(confirm["first_offset"], confirm["last_offset"] + 1)
    drop(feed, lambda event: event["event"] == "enqueue" and event["offset"] in offsets)


@named()
def a_plain_dequeue_is_nowhere(feed: Feed) -> None:
    offset = middle(events(feed, "dequeue", tx=""))["offset"]
    drop(feed, lambda event: event["event"] == "dequeue" and event["offset"] == offset)


@named()
def all_plain_dequeues_are_nowhere(feed: Feed) -> None:
    drop(feed, lambda event: event["event"] == "dequeue" and not event["tx"])


@named()
def the_dequeues_of_a_transaction_are_nowhere(feed: Feed) -> None:
    tx = answer(feed)["tx"]
    drop(feed, lambda event: event["event"] == "dequeue" and event["tx"] == tx)


@named()
def an_enqueue_with_its_assign_is_nowhere(feed: Feed) -> None:
    one = middle(each for each in events(feed, "assign") if each["count"] == 1)
    of = one["tx"], one["queue_id"]
    drop(feed, lambda event: event["event"] in ("enqueue", "assign") and (event["tx"], event["queue_id"]) == of)


# -- nothing told -------------------------------------------------------------------------------------------------------


@named()
def all_answers_are_gone(feed: Feed) -> None:
    drop(feed, lambda event: event["event"] in ("told", "confirm"))


@named()
def all_outcomes_are_gone(feed: Feed) -> None:
    drop(feed, lambda event: event["event"] == "told")


@named()
def all_confirms_are_gone(feed: Feed) -> None:
    drop(feed, lambda event: event["event"] == "confirm")


@named()
def all_deliveries_are_gone(feed: Feed) -> None:
    drop(feed, lambda event: event["event"] == "deliver")


@named()
def a_delivery_of_a_taken_message_is_gone(feed: Feed) -> None:
    taken = {(each["queue_id"], each["id"]) for each in events(feed, "dequeue")}
    one = next(each for each in events(feed, "deliver") if (each["queue_id"], each["id"]) in taken)
    of = one["queue_id"], one["id"]
    drop(feed, lambda event: event["event"] in ("deliver", "requeue") and (event["queue_id"], event["id"]) == of)


# -- forged facts -------------------------------------------------------------------------------------------------------


@named()
def a_client_was_told_of_a_transaction_that_never_was(feed: Feed) -> None:
    one = answer(feed)
    behind(feed, one, {**one, "tx": f"{one['tx'].rpartition('.')[0]}.999"})


@named()
def a_confirm_names_a_place_that_is_no_publish(feed: Feed) -> None:
    one, offset = middle(events(feed, "confirm")), middle(events(feed, "prepare", epoch=1))["offset"]
    behind(feed, one, {**one, "first_offset": offset, "last_offset": offset, "count": 1, "stable": offset})


@named()
def a_confirm_counts_too_many(feed: Feed) -> None:
    middle(events(feed, "confirm"))["count"] += 1


@named()
def an_answer_has_a_number_that_the_log_lacks(feed: Feed) -> None:
    answer(feed)["csn"] += 1000


@named()
def an_answer_has_another_name(feed: Feed) -> None:
    answer(feed)["name"] += "x"


@named()
def an_answer_names_another_commit(feed: Feed) -> None:
    answer(feed)["decided_at"] += 1


@named()
def an_answer_names_another_rollback(feed: Feed) -> None:
    middle(events(feed, "told", answer="tx.rollback-ok"))["decided_at"] -= 1


@named()
def a_message_is_delivered_that_never_was(feed: Feed) -> None:
    one = middle(events(feed, "deliver", logged=True))
    behind(feed, one, {**one, "id": one["id"] + 1000})


@named()
def a_second_record_stands_at_a_place_of_one_broker(feed: Feed) -> None:
    commit = backup(feed, middle(events(feed, "commit", epoch=1)))
    behind(feed, commit, {**middle(events(feed, "enqueue", tx="")), **_place(commit), "id": 1 << 41})


@named()
def a_second_record_stands_at_a_place_of_all_brokers(feed: Feed) -> None:
    offset = middle(events(feed, "commit", epoch=1))["offset"]
    message = middle(events(feed, "enqueue", tx=""))
    for commit in list(events(feed, "commit", offset=offset)):
        behind(feed, commit, {**message, **_place(commit), "id": 1 << 41})


def _place(event: Event) -> Event:
    """Where an event stands."""
    return {name: event[name] for name in ("broker", "incarnation", "epoch", "offset", "at_ms")}


# -- the end of a feed, and its numbers ---------------------------------------------------------------------------------


@named()
def the_end_of_the_primarys_feed_is_gone(feed: Feed) -> None:
    """From the middle of its last segment and of its last process on."""
    broker = primary(feed)
    for kind in ("j", "p"):
        stream = [each for each in feed[broker] if each["incarnation"].startswith(kind)]
        last = [each for each in stream if each["incarnation"] == stream[-1]["incarnation"]]
        gone = {id(each) for each in last[len(last) // 2 :]}
        feed[broker] = [each for each in feed[broker] if id(each) not in gone]


@named()
def the_end_of_the_primarys_facts_is_gone(feed: Feed) -> None:
    broker = primary(feed)
    facts = [each for each in feed[broker] if is_fact(each)]
    gone = {id(each) for each in facts[-len(facts) // 3 :]}
    feed[broker] = [each for each in feed[broker] if id(each) not in gone]


@named(closes=False)
def two_contents_stand_behind_one_number(feed: Feed) -> None:
    one = backup(feed, middle(events(feed, "enqueue", tx="")))
    behind(feed, one, {**one, "size": one["size"] + 1})


@named(closes=False)
def a_batch_states_another_digest_of_the_events_before_it(feed: Feed) -> None:
    backup(feed, middle(events(feed, "append")))["event_digest"] ^= 1


# -- one broker's journal differs ---------------------------------------------------------------------------------------


@named()
def a_commit_is_missing_on_one(feed: Feed) -> None:
    one = backup(feed, middle(events(feed, "commit")))
    drop(feed, lambda event: event is one)


@named()
def a_commit_stands_before_its_prepare_on_one(feed: Feed) -> None:
    one = backup(feed, middle(events(feed, "commit", epoch=1)))
    some = feed[one["broker"]]
    some.remove(one)
    some.insert(next(at for at, each in enumerate(some) if each["event"] == "close" and each["tx"] == one["tx"]), one)


@named()
def a_commit_has_another_number_on_one(feed: Feed) -> None:
    backup(feed, middle(events(feed, "commit")))["csn"] += 1


@named()
def a_transaction_is_committed_on_one_that_was_never_prepared(feed: Feed) -> None:
    one = backup(feed, middle(events(feed, "commit", epoch=1)))
    one["tx"] = f"{one['tx'].rpartition('.')[0]}.999"


def _rollback(feed: Feed) -> Event:
    """Of a client, on a backup."""
    return backup(feed, middle(each for each in events(feed, "rollback") if each.get("primary_ms")))


@named()
def a_rollback_is_a_commit_on_one(feed: Feed) -> None:
    one = _rollback(feed)
    one |= {"event": "commit", "csn": 99}
    for name in ("name", "reason"):
        one.pop(name, None)


@named()
def a_rollback_is_missing_on_one(feed: Feed) -> None:
    one = _rollback(feed)
    drop(feed, lambda event: event is one)


@named()
def what_was_rolled_back_is_applied_on_one(feed: Feed) -> None:
    one = _rollback(feed)
    stable = one["offset"]
    new = {**one, "event": "apply", "csn": 99, "stable": stable, "decided_at": stable, "offset": stable}
    behind(feed, one, {name: value for name, value in new.items() if name not in ("name", "reason", "primary_ms")})


def _apply(feed: Feed) -> Event:
    """Of a transaction, on a backup."""
    return backup(feed, middle(each for each in events(feed, "apply", epoch=1) if each.get("tx")))


@named()
def transactions_are_applied_in_another_order_on_one(feed: Feed) -> None:
    one = _apply(feed)
    of_tx = [each for each in feed[one["broker"]] if each["event"] == "apply" and each.get("tx")]
    other = of_tx[of_tx.index(one) - 1]
    fields = ("tx", "csn", "decided_at", "offset")
    first, second = ({name: each[name] for name in fields} for each in (one, other))
    one |= second
    other |= first


@named()
def a_transaction_is_not_applied_on_one(feed: Feed) -> None:
    one = _apply(feed)
    drop(feed, lambda event: event is one)


@named()
def a_queue_is_deleted_on_one(feed: Feed) -> None:
    one = backup(feed, middle(events(feed, "commit", epoch=1)))
    queue = next(events(feed, "declare", what="queue"))
    delete = {name: queue[name] for name in ("schema", "group", "founding", "vhost", "queue", "queue_id", "what")}
    behind(feed, one, {**delete, **_place(one), "event": "delete", "seq": 0})


@named()
def a_queue_is_declared_on_one(feed: Feed) -> None:
    one = backup(feed, middle(events(feed, "commit", epoch=1)))
    queue = next(events(feed, "declare", what="queue"))
    behind(feed, one, {**queue, **_place(one), "queue": "another", "queue_id": 999})


@named()
def a_queue_has_another_name_on_one(feed: Feed) -> None:
    backup(feed, next(events(feed, "declare", what="queue")))["queue"] += "x"


@named()
def an_epoch_is_missing_on_one(feed: Feed) -> None:
    one = backup(feed, max(events(feed, "epoch"), key=lambda event: int(event["epoch"])))
    drop(feed, lambda event: event is one)


@named()
def a_transaction_has_another_name_on_one(feed: Feed) -> None:
    backup(feed, middle(events(feed, "prepare", owner="local")))["name"] += "x"


@named()
def a_message_has_another_routing_key_on_one(feed: Feed) -> None:
    backup(feed, middle(events(feed, "enqueue", tx="")))["routing_key"] += "x"


@named()
def a_message_expires_on_one(feed: Feed) -> None:
    backup(feed, middle(events(feed, "enqueue", tx="")))["deadline_ms"] = 1


@named()
def a_record_has_another_epoch_on_one(feed: Feed) -> None:
    backup(feed, middle(events(feed, "enqueue", tx="", epoch=1)))["epoch"] = 2
