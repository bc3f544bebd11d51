"""Things that the rules of the model have in common: bounds, the bug that is put in, and the form of a step."""

from __future__ import annotations

from typing import Final, NamedTuple

import attrs

from tests.model.records import record
from tests.model.state import IDLE, WON, Bounds, Broker, View, World, first_log, purged, with_view, without_view

PLAIN: Final = 0
RESTART: Final = 1
FAULT: Final = 2
"""Kinds of steps. What a goal asks for must be reachable without a FAULT; that of availability without a RESTART too."""

CARRIED_OVER: Final = ("stable-is-carried-over", "stable-told-ahead-and-carried-over")
"""Mutations in which a promoted broker decides by what it was told under an older epoch."""
KEEPS_SURE: Final = (*CARRIED_OVER, "commit-when-received")
"""Mutations in which it matters what a backup was told of PREPARE (``Broker.sure``)."""
TOLD_AHEAD: Final = ("stable-told-ahead", "stable-told-ahead-and-carried-over")

Rest = tuple[str, int, int]
"""What a step does to all brokers that it does not name (:func:`rest_of`): a verb, an epoch, a flag."""


class Around(NamedTuple):
    """Facts about all brokers that a step of one or two of them has to know.

    Attributes:
        listed: how many brokers the store lists.
        leading: a primary of the store's epoch lives.
        members: how many the primary that acts counts in its set, itself among them; 0 if none acts.
    """

    listed: int
    leading: bool
    members: int


class Step(NamedTuple):
    """One thing that may happen.

    Attributes:
        text: "{p}" and "{b}" stand for ``one`` and ``two``, or "{b}" for ``one`` in a step of one broker.
        rest: what becomes of all other brokers, None for nothing.
        broken: the promise that this step breaks, "" for none.
    """

    text: str
    kind: int
    world: World
    one: Broker
    two: Broker | None = None
    rest: Rest | None = None
    broken: str = ""


@attrs.frozen
class Rules:
    """The bounds, the bug and the known log that all rules are given.

    Attributes:
        bug: the mutation that is in force, "" for none.
        known: how long the log is of which every broker knows that it is stable.
    """

    bounds: Bounds
    bug: str = ""
    known: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "known", len(first_log(self.bounds)))


def append(primary: Broker, kind: int) -> Broker:
    """A primary's log grows; what was in the open batch goes with it."""
    role = primary.role
    assert role is not None
    log = (*primary.log, record(role.epoch, kind))
    return primary._replace(log=log, role=role._replace(open=0) if role.open else role)


def rest_of(rest: Rest, broker: Broker) -> Broker:
    """The effect of a step on a broker that it does not name.

    =========  ==========================================================================================================
    forget     the primary of that epoch is gone
    purge      the store has changed: every request that is on its way fails
    raise      the same, and an epoch begins: the old primary is dropped from the set (flag 1), or all others are (2)
    guard      a broker leads that epoch: it waits for every listed one
    lead       both of the last two
    =========  ==========================================================================================================
    """
    verb, epoch, flag = rest
    if verb == "forget":
        return without_view(broker, epoch)
    if verb in ("purge", "raise", "lead"):
        broker = purged(broker)
    if verb in ("raise", "lead"):
        leaves = flag == 2 or (flag == 1 and broker.named)
        campaign = IDLE if broker.campaign == WON else broker.campaign
        broker = broker._replace(named=0, listed=0 if leaves else broker.listed, campaign=campaign)
    if verb in ("guard", "lead") and broker.listed:
        broker = with_view(broker, View(epoch, 1))
    return broker
