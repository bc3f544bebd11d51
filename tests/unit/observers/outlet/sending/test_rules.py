"""Which topic a queue's messages go to."""

from __future__ import annotations

import re
from typing import Any

import pytest

from understudy.broker.config import structure
from understudy.broker.server.turn.node_driver import limits_of, moved_bodies_of
from understudy.observers.outlet.sending.rules import OutletRule, OutletRuleError, OutletRules, parse_rule


def test_the_first_rule_that_matches_counts() -> None:
    rules = OutletRules(
        "shop", [OutletRule("//orders.*", "orders"), OutletRule("//*", "rest"), OutletRule("*", "never")]
    )
    assert rules.topic("/", "orders.eu") == "orders"
    assert rules.topic("/", "orders") == "rest"
    assert rules.topic("test", "orders.eu") == "never"


def test_without_rules_all_goes_to_one_topic_of_the_group() -> None:
    assert OutletRules("shop").topic("/", "any queue") == "understudy.shop"
    assert OutletRules("shop").fixed_topics() == ["understudy.shop"]


def test_names_become_fit_for_kafka() -> None:
    rules = OutletRules("shop", [OutletRule("*", "{group}.{vhost}.{queue}")])
    assert rules.topic("/", "bills paid/é") == "shop.root.bills_paid__"
    assert rules.topic("a b", "q") == "shop.a_b.q"
    assert rules.fixed_topics() == ["understudy.shop"]


def test_a_queue_may_be_left_out() -> None:
    rules = OutletRules("shop", [OutletRule("//audit", "")])
    assert rules.topic("/", "audit") == ""
    assert rules.fixed_topics() == ["understudy.shop"]
    assert OutletRules("shop", [OutletRule("//orders", "orders")], default="").topic("/", "bills") == ""


def test_only_star_and_question_mark_are_special() -> None:
    rules = OutletRules("g", [OutletRule("//[a]?.*", "t")], default="")
    assert rules.topic("/", "[a]1.x") == "t"
    assert rules.topic("/", "a1.x") == ""
    assert rules.topic("/", "[a]12x") == ""


@pytest.mark.parametrize("default", ["", "understudy.{group}"])
def test_a_broker_repeats_the_bodies_of_what_has_a_topic(default: str) -> None:
    rules = (("//dead?", "dead"), ("//audit*", ""), ("v[1]/*", "{queue}{queue}"))
    config = structure(
        {
            "broker": {"id": "b1", "data": "/tmp/b1"},
            "kafka": {"hosts": ["k:1"]},
            "plugins": {"outlet": True},
            "outlet": {"topic": default, "rules": [{"queues": queues, "topic": topic} for queues, topic in rules]},
        }
    )
    bodies = moved_bodies_of(config)
    topics = OutletRules("g", [OutletRule(*rule) for rule in rules], default)
    for vhost, queue in (("/", "dead1"), ("/", "dead12"), ("/", "audit.x"), ("/", "q"), ("v[1]", "q"), ("v1", "q")):
        for _ in range(2):
            assert bodies.repeats(vhost, queue, 1 << 20) == bool(topics.topic(vhost, queue)), (vhost, queue)
        assert not bodies.repeats(vhost, queue, (1 << 20) + 1)
        assert not bodies.repeats(vhost, queue, 0)
    assert bodies.repeats("v[1]", "q" * 200, 1), "its name makes no topic: it goes aside, with its body"


@pytest.mark.parametrize(
    ("plugin", "outlet", "repeats"),
    [
        (False, {}, False),
        (False, {"dead_letters": True}, True),
        (True, {}, True),
        (True, {"plain": False}, False),
        (True, {"topic": ""}, False),
    ],
)
def test_a_broker_without_an_outlet_repeats_no_bodies(plugin: bool, outlet: dict[str, Any], repeats: bool) -> None:
    config = structure(
        {
            "broker": {"id": "b1", "data": "/tmp/b1"},
            "kafka": {"hosts": ["k:1"]},
            "plugins": {"outlet": plugin},
            "outlet": outlet,
        }
    )
    assert moved_bodies_of(config).repeats("/", "q", 1) is repeats
    assert limits_of(config).moved_bodies.repeats("/", "q", 1) is repeats


@pytest.mark.parametrize("topic", ["a b", "ä", "x" * 250, ".", "..", "{vhost", "{user}", "{}"])
def test_what_is_no_topic_is_refused_by_name(topic: str) -> None:
    with pytest.raises(OutletRuleError, match="topic "):
        OutletRule("*", topic)


def test_a_topic_that_names_make_too_long_names_the_queue() -> None:
    rules = OutletRules("g", [OutletRule("*", "{queue}" * 2)])
    with pytest.raises(OutletRuleError, match=r"queue 'q{100,}.*250 characters"):
        rules.topic("/", "q" * 125)


def test_a_rule_of_a_command_line() -> None:
    assert parse_rule("//a=b*=orders") == OutletRule("//a=b*", "orders")
    assert parse_rule("//audit=") == OutletRule("//audit", "")
    for text in ("orders", "=orders"):
        with pytest.raises(OutletRuleError):
            parse_rule(text)


def test_forms_of_topics_that_are_known_with_their_queue() -> None:
    rules = OutletRules("sh.op", [OutletRule("//a", "fixed"), OutletRule("//b*", "{group}.{queue}-x")], "{queue}")
    (form,) = rules.topic_forms()
    assert re.fullmatch(form, "sh.op.b1-x")
    assert not re.fullmatch(form, "shXop.b1-x")
    assert OutletRules("g").topic_forms() == []
