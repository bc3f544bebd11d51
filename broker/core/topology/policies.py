"""Policies: settings that an operator gives to queues and exchanges by their names. The words and rules are RabbitMQ's.

A policy applies to the names that its pattern finds. Of several the one with the highest priority applies, and of those with one
priority the first in the file. One policy applies to a queue or an exchange, never two together.

A queue may have an argument for the same setting. `KEYS` says which value holds then: the lower number, the argument, or the
policy's. The arguments themselves stay as they were declared: a declaration is compared with those alone.

**Where the settings are.** In no record: each broker reads its own file, and a queue is configured when it is made. Only the leader
acts by them, and what it does (a deadline, a DEQUEUE, a MOVE, the deletion of a queue) is in the log. So brokers whose files differ
hold the same; a new leader brings its own file into force. A record with the settings was refused: the file would then
not be what holds (``docs/decisions/0055-policies-and-deduplication.md``).

Sources: RabbitMQ 4.3, policies; ``rabbit_amqqueue_process:process_args_policy``, ``rabbit_quorum_queue:gather_policy_config``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from understudy.broker.core.queues import dead_letters, queue_limits, return_rule
from understudy.broker.core.queues.queue import CONSUMER_TIMEOUT, Queue
from understudy.broker.core.queues.queue_arguments import CHECKS, EXPIRES, MESSAGE_TTL, STRATEGY, is_name
from understudy.broker.core.topology.exchanges import ALTERNATE, Exchange

QUEUES: Final = "queues"
EXCHANGES: Final = "exchanges"
ALL: Final = "all"
DIGEST_DIGITS: Final = 12

Check = Callable[[Any], str]
"""The fault of a value, "" if there is none."""


def _of_policy(policy: Any, _: Any) -> Any:
    return policy


def _of_argument(_: Any, argument: Any) -> Any:
    return argument


def lower_limit(policy: int, argument: int) -> int:
    """The lower of two numbers of deliveries; a negative one is no limit."""
    return max(policy, argument) if policy < 0 or argument < 0 else min(policy, argument)


@attrs.frozen
class Setting:
    """The setting of one key of a definition.

    Attributes:
        argument: of a queue or an exchange that sets the same.
        holds: from the policy's value and the argument's to the one in force.
        of: `QUEUES` or `EXCHANGES`.
    """

    argument: str
    holds: Callable[[Any, Any], Any]
    of: str = QUEUES

    @property
    def check(self) -> Check:
        return CHECKS[self.argument] if self.of == QUEUES else is_name


KEYS: Final = {
    "message-ttl": Setting(MESSAGE_TTL, min),
    "expires": Setting(EXPIRES, min),
    "max-length": Setting(queue_limits.MAX_LENGTH, min),
    "max-length-bytes": Setting(queue_limits.MAX_LENGTH_BYTES, min),
    "overflow": Setting(queue_limits.OVERFLOW, _of_argument),
    "dead-letter-exchange": Setting(dead_letters.EXCHANGE, _of_argument),
    "dead-letter-routing-key": Setting(dead_letters.ROUTING_KEY, _of_argument),
    "dead-letter-strategy": Setting(STRATEGY, _of_argument),
    "delivery-limit": Setting(return_rule.LIMIT, lower_limit),
    "delayed-retry-type": Setting(return_rule.RETRY_TYPE, _of_policy),
    "delayed-retry-min": Setting(return_rule.RETRY_MIN, min),
    "delayed-retry-max": Setting(return_rule.RETRY_MAX, min),
    "consumer-timeout": Setting(CONSUMER_TIMEOUT, min),
    "alternate-exchange": Setting(ALTERNATE, _of_argument, EXCHANGES),
}
"""Keys of definitions."""


@attrs.frozen(kw_only=True)
class Policy:
    """One policy; all of it has been checked.

    Attributes:
        vhost: where it applies; None is everywhere.
        pattern: found anywhere in the name, unless it says otherwise.
        apply_to: `QUEUES`, `EXCHANGES` or `ALL`.
        definition: `KEYS` to their values.
    """

    name: str
    pattern: str
    definition: Mapping[str, Any]
    vhost: str | None = None
    apply_to: str = ALL
    priority: int = 0

    def applies(self, of: str, vhost: str, name: str) -> bool:
        """True if it applies to the queue or exchange (``of``) of that name."""
        here = self.vhost in (None, vhost) and self.apply_to in (of, ALL)
        return here and re.search(self.pattern, name) is not None

    @property
    def digest(self) -> str:
        """Equal for two policies that say the same."""
        said = [self.name, self.pattern, sorted(self.definition.items()), self.vhost, self.apply_to, self.priority]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:DIGEST_DIGITS]


class Policies:
    """All policies of a broker. They do not change while its process runs."""

    def __init__(self, policies: Iterable[Policy] = ()) -> None:
        """``policies``: in the order of the file."""
        self.all = tuple(policies)
        self._ordered = sorted(self.all, key=lambda policy: -policy.priority)

    def digests(self) -> dict[str, str]:
        """Name to digest, in the order in which they apply, for a comparison with those of other brokers.

        A name may stand in several virtual hosts. The order of the file decides between equal priorities, and is in no digest.
        """
        return {
            policy.name if policy.vhost is None else f"{policy.vhost}: {policy.name}": policy.digest
            for policy in self._ordered
        }

    def govern(self, queue: Queue) -> None:
        """Configure a queue that is new by the policy that applies to it, if any."""
        if self._ordered and queue.policy is None:
            policy = self._of(QUEUES, queue.vhost, queue.name)
            if policy is not None:
                queue.configure(_in_force(policy, queue.arguments, QUEUES), policy.name)

    def govern_exchange(self, exchange: Exchange) -> None:
        """The same for an exchange. No policy applies to the default exchange."""
        policy = self._of(EXCHANGES, exchange.vhost, exchange.name) if self._ordered and exchange.name else None
        if policy is not None:
            exchange.lead_to(_in_force(policy, exchange.arguments, EXCHANGES).get(ALTERNATE))

    def _of(self, of: str, vhost: str, name: str) -> Policy | None:
        return next((policy for policy in self._ordered if policy.applies(of, vhost, name)), None)


def _in_force(policy: Policy, arguments: Mapping[str, Any], of: str) -> dict[str, Any]:
    """The arguments, as ``policy`` changes and completes them."""
    found = dict(arguments)
    for key, value in policy.definition.items():
        setting = KEYS[key]
        if setting.of == of:
            argument = setting.argument
            found[argument] = setting.holds(value, found[argument]) if argument in found else value
    return found
