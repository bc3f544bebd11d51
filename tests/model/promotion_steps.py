"""Campaigns and promotion.

The store decides who may lead: whoever is listed, in the compare-and-set that raises the epoch. When to try is a matter of speed,
so a campaign may begin at any moment; while the primary lives it costs one of ``Bounds.takeovers``. A campaign's request may be
late, and its broker may give it up and go on as a backup.

Sources: DESIGN 5 (promotion, steps 1 to 8); ha/following/backup.py, ha/ha_broker.py (promoted), ha/leading/primary.py (begin),
decision 0007.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.records import CLOSED, COMMIT, EPOCH, IN_DOUBT, PREPARE, ROLLBACK, record, transaction
from tests.model.rules import CARRIED_OVER, FAULT, PLAIN, Around, Rest, Rules, Step
from tests.model.state import (
    FORGOTTEN,
    IDLE,
    WAITING,
    WON,
    Broker,
    Role,
    World,
    no_stands,
    wiped,
)

IN_DOUBT_DECIDED = {"epoch-ends-prepared": ROLLBACK, "prepared-is-committed": PREPARE}
"""Mutations in which a promoted broker decides what is in doubt, and how."""


def steps(rules: Rules, world: World, broker: Broker, around: Around) -> Iterator[Step]:
    """Steps by which ``broker``, which does not lead, comes to lead."""
    if broker.campaign in (WAITING, FORGOTTEN):
        yield _lands(rules, world, broker, around)
    if not broker.up or broker.role is not None:
        return
    if broker.campaign == WAITING:
        text = "{b} reads back, finds nothing changed and goes on as a backup"
        yield Step(text, PLAIN, world, broker._replace(campaign=FORGOTTEN))
    elif broker.campaign == WON:
        yield _promoted(rules, world, broker, "{b} reads back that it leads")
    elif _may_take_over(rules, broker):
        kind = PLAIN
        if around.leading:
            if not world.takeovers:
                return
            kind, world = FAULT, world._replace(takeovers=world.takeovers - 1)
        if broker.campaign == IDLE:
            raised, (_, epoch, flag) = _raised(rules, world, broker, around)
            step = _promoted(rules, raised, broker, f"{{b}} campaigns and leads epoch {epoch}")
            yield step._replace(kind=kind, rest=("lead", epoch, flag))
            if world.lost:
                spent = world._replace(lost=world.lost - 1)
                after = broker._replace(link=0, campaign=WAITING)
                yield Step("{b} campaigns; its request takes long", FAULT, spent, after)


def _may_take_over(rules: Rules, broker: Broker) -> bool:
    """Listed in the store; not in the middle of a catch-up; not wiped. Nothing else is asked (Backup._may_take_over)."""
    if broker.part:
        return False
    if wiped(broker) and rules.bug != "wiped-leads":
        return False
    return bool(broker.listed) or rules.bug == "unlisted-is-promoted"


def _lands(rules: Rules, world: World, broker: Broker, around: Around) -> Step:
    """A campaign's request lands late. Its broker may have crashed, or follow the primary again."""
    raised, rest = _raised(rules, world, broker, around)
    after = broker._replace(named=1, flight=0, campaign=WON if broker.campaign == WAITING else IDLE)
    return Step(
        f"a late campaign lands: the store names {{b}} for epoch {raised.epoch}", PLAIN, raised, after, rest=rest
    )


def _raised(rules: Rules, world: World, broker: Broker, around: Around) -> tuple[World, Rest]:
    """The store after the compare-and-set: the set is the old one, less the old primary if enough remain."""
    drop = not broker.named and around.listed - 1 >= rules.bounds.min_insync
    flag = 0 if rules.bug == "set-keeps-the-old-primary" else int(drop)
    if rules.bug == "set-is-the-primary-alone":
        flag = 2
    raised = world._replace(epoch=world.epoch + 1)
    return raised, ("raise", raised.epoch, flag)


def _promoted(rules: Rules, world: World, broker: Broker, text: str) -> Step:
    """Steps 2 and 4: no acknowledgement of the old epoch any more; EPOCH; ROLLBACK where this broker's no stands.

    What it was told of the old epoch's stable position decides nothing: the tail becomes stable anew, like new work (step 7).
    """
    epoch = world.epoch
    tx = transaction(broker.log)
    log = (*broker.log, record(epoch, EPOCH))
    broken = ""
    if no_stands(broker):
        if tx.state not in (CLOSED, IN_DOUBT):
            broken = "the assertion of roll_back_closed: a standing no, and the transaction is decided"
        log = (*log, record(epoch, ROLLBACK))
    elif tx.state == CLOSED and 0 < tx.prepare <= broker.start:
        # It was caught up past the decision: the COMMIT is owed, others may wait for it (decision 0010).
        if rules.bug != "owed-commit-is-forgotten":
            log = (*log, record(epoch, COMMIT))
    elif tx.state == CLOSED and rules.bug == "closed-is-aborted":
        log = (*log, record(epoch, ROLLBACK))
    elif tx.state == IN_DOUBT and rules.bug in IN_DOUBT_DECIDED:
        log = (*log, record(epoch, IN_DOUBT_DECIDED[rules.bug]))
    told = tx.prepare if broker.sure and rules.bug in CARRIED_OVER else 0
    if broker.sure and tx.prepared:
        told = tx.prepared  # nothing waits there: it is applied (Primary.__init__: what is applied is stable)
    role = Role(epoch, 0, min(max(rules.known, broker.start, told), len(broker.log)))
    after = broker._replace(log=log, link=0, named=1, flight=0, campaign=IDLE, role=role)
    return Step(text, PLAIN, world, after, rest=("guard", epoch, 0), broken=broken)
