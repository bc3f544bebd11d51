"""Rules: to which Kafka topic a message of a queue goes, and under which key.

A rule has a pattern of ``vhost/queue``, with ``*`` for any characters and ``?`` for one. The first rule that matches counts.
Without a match the default topic holds. A rule with the topic "" lets messages of that queue out of Kafka.

Names of AMQP hold characters that Kafka's topics may not; where ``{queue}`` or ``{vhost}`` stands in a topic, each of them becomes
``_``, and the vhost ``/`` becomes ``root``. Two queues may so come to one topic; the header of each message tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import attrs

from understudy.broker.core.queues.moved_bodies import queue_pattern
from understudy.broker.errors import UnderstudyError

MAX_TOPIC: Final = 249
"""Characters of a name: Kafka's limit."""
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]")
_FIELD: Final = re.compile(r"\{(\w*)\}")
_FIELDS: Final = frozenset(("vhost", "queue", "group"))
_REMEMBERED: Final = 100_000
"""So many queues have their topic looked up once only."""

DEFAULT_TOPIC: Final = "understudy.{group}"


class OutletRuleError(UnderstudyError):
    """A rule cannot be used, or a topic that it makes cannot be one."""


@attrs.frozen
class OutletRule:
    """One rule.

    Args:
        pattern: of ``vhost/queue``; the vhost ``/`` and the queue ``orders`` are ``//orders``.
        topic: name, may hold ``{vhost}``, ``{queue}`` and ``{group}``; "": not sent.

    Raises:
        OutletRuleError: names pattern or topic.
    """

    pattern: str
    topic: str

    def __attrs_post_init__(self) -> None:
        if not self.pattern:
            raise OutletRuleError("a rule of the outlet has an empty pattern; '*' is every queue")
        if self.topic:
            check_topic_form(self.topic)


def check_topic_form(topic: str) -> None:
    """Raises OutletRuleError unless ``topic`` names one, with the fields that rules know."""
    for field in _FIELD.findall(topic):
        if field not in _FIELDS:
            raise OutletRuleError(f"topic {topic!r}: {{{field}}} is none of {{vhost}}, {{queue}}, {{group}}")
    plain = _FIELD.sub("x", topic)
    if not _TOPIC.fullmatch(plain) or plain in (".", ".."):
        raise OutletRuleError(f"topic {topic!r} is no name of a topic: letters, digits, '.', '_' and '-', at most 249")


def parse_rule(text: str) -> OutletRule:
    """A rule as a command line has it: ``PATTERN=TOPIC``; topics hold no ``=``.

    Raises:
        OutletRuleError: it is none.
    """
    pattern, equals, topic = text.rpartition("=")
    if not equals:
        raise OutletRuleError(f"{text!r} is no rule; one is written PATTERN=TOPIC, as in '//orders*=orders'")
    return OutletRule(pattern, topic)


class OutletRules:
    """All rules of a group.

    Args:
        group: id of the group.
        rules: the first that matches counts.
        default: topic of what no rule matches; "": not sent.
    """

    def __init__(self, group: str, rules: Sequence[OutletRule] = (), default: str = DEFAULT_TOPIC) -> None:
        if default:
            check_topic_form(default)
        self._group = group
        self._rules = [(queue_pattern(rule.pattern), rule.topic) for rule in rules]
        self._default = default
        self._found: dict[tuple[str, str], str] = {}

    def topic(self, vhost: str, queue: str) -> str:
        """The topic of a queue; "": its messages are not sent.

        Raises:
            OutletRuleError: the names make it too long.
        """
        topic = self._found.get((vhost, queue))
        if topic is None:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            topic = self._found[vhost, queue] = self._made(vhost, queue)
        return topic

    def _made(self, vhost: str, queue: str) -> str:
        name = f"{vhost}/{queue}"
        form = next((topic for pattern, topic in self._rules if pattern.fullmatch(name)), self._default)
        if not form:
            return ""
        fields = {"vhost": _fit(vhost) if vhost != "/" else "root", "queue": _fit(queue), "group": _fit(self._group)}
        topic = _FIELD.sub(lambda found: fields[found[1]], form)
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise OutletRuleError(
                f"queue {queue!r} of vhost {vhost!r}: {topic[:80]!r}, of the rule's topic {form!r}, has {len(topic)} characters;"
                f" a topic of Kafka has 1 to {MAX_TOPIC}"
            )
        return topic

    def fixed_topics(self) -> list[str]:
        """The topics that can be known before a message comes: those without ``{vhost}`` and ``{queue}``; sorted."""
        forms = {topic for _, topic in self._rules} | {self._default}
        group = _fit(self._group)
        fixed = {form.replace("{group}", group) for form in forms if form}
        return sorted(form for form in fixed if not _FIELD.search(form))

    def topic_forms(self) -> list[str]:
        """Regular expressions of the other topics; sorted. A form without a letter of its own matches nothing."""
        forms = {topic for _, topic in self._rules} | {self._default}
        group = _fit(self._group)
        found = set()
        for form in forms:
            parts = _FIELD.split(form.replace("{group}", group))[::2]  # between the fields
            if len(parts) > 1 and any(parts):
                found.add("[A-Za-z0-9._-]*".join(map(re.escape, parts)))
        return sorted(found)


def _fit(name: str) -> str:
    return _UNFIT.sub("_", name)
