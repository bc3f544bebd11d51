"""The in-sync set. In: hold, then write. Out: write, then release (DESIGN 5).

A request is *on its way* (``Broker.flight``) until it lands, and lands whatever has become of who sent it. The store compares
epoch and version, so what lands first makes all others fail: none of those is on its way any more. A lost answer, or one that
does not come for long, is settled by reading back, and if that shows nothing, by writing over it (decision 0003).

Sources: ha/leading/in_sync_set.py, ha/leading/queue_guard.py, ha/leading/primary.py (_consider, _consider_expelling, _adopt),
ha/leading/remote_backup.py. The code guards a joiner later than it might here, when it has shown that it keeps up
(RemoteBackup.keeps_up).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.catch_up_steps import IN_PIECE
from tests.model.records import CLOSED, IN_DOUBT, transaction
from tests.model.rules import FAULT, PLAIN, Rest, Rules, Step
from tests.model.state import (
    LOST_DATA,
    Broker,
    Role,
    View,
    World,
    closed_end,
    purged,
    view_of,
    with_view,
    without_view,
)

PURGE: Rest = ("purge", 0, 0)


def steps(rules: Rules, world: World, primary: Broker, backup: Broker, members: int) -> Iterator[Step]:
    """Steps of ``primary``, which counts ``members`` in its set, about the membership of ``backup``."""
    role = primary.role
    assert role is not None
    view = view_of(backup, role.epoch)
    if backup.flight and world.epoch == role.epoch and (view is None or not view.change):
        for step in orphaned(world, backup):
            yield step._replace(one=primary, two=step.one)
    if view is None:
        return
    if not view.listed:
        yield from _joiner(rules, world, primary, backup, view)
    else:
        yield from _member(rules, world, primary, backup, view, members)
    if view.change:
        yield from _change(rules, world, primary, backup, view)


def tracked(primary: Broker, backup: Broker) -> bool:
    """True if a TxTracker stands: the transaction is closed, and the backup lacks what a TRANSACTION piece brings."""
    owed = backup.filling is not None and backup.filling.owed
    return bool(owed and backup.lacks & IN_PIECE and transaction(primary.log).state in (CLOSED, IN_DOUBT))


def _joiner(rules: Rules, world: World, primary: Broker, backup: Broker, view: View) -> Iterator[Step]:
    role = primary.role
    assert role is not None
    linked = backup.link == role.epoch and backup.up
    end = closed_end(primary)
    current = world.epoch == role.epoch
    caught_up = not backup.part or rules.bug == "guarded-before-caught-up"
    if (view.guard or backup.part) and not view.change:
        yield Step("the link between {p} and {b} is lost", PLAIN, world, primary, without_view(backup, role.epoch))
    if not linked:
        return
    if not view.guard and caught_up and len(backup.log) == end and (role.active or rules.bug != "joins-late"):
        guarded = with_view(backup, view._replace(guard=end))
        yield Step(f"{{b}} has been sent everything: {{p}} guards it from {end}", PLAIN, world, primary, guarded)
    passed = view.guard and (view.acked >= view.guard or rules.bug == "listed-before-guard") and caught_up
    if passed and current and not role.busy and not tracked(primary, backup):
        yield _asked(primary, backup, view, world, "{p} asks the store to add {b}")


def _member(rules: Rules, world: World, primary: Broker, backup: Broker, view: View, members: int) -> Iterator[Step]:
    """A time-out may strike at any moment; it shrinks the set no further than to the minimum. Who lost its data leaves anyway."""
    role = primary.role
    assert role is not None
    lost_data = view.leaving == LOST_DATA and rules.bug != "lost-data-stays"
    floor = 1 if rules.bug == "set-below-its-minimum" else rules.bounds.min_insync
    if members <= floor and not lost_data:
        return
    if world.epoch == role.epoch:
        if not role.busy:
            step = _asked(primary, backup, view, world, "{p} asks the store to remove {b}")
            if rules.bug == "expelled-after" and step.two is not None:
                released = with_view(step.two, view._replace(listed=0, change=1))
                step = step._replace(two=released, text=step.text + " and waits for it no more")
            yield step
    elif rules.bug == "conflict-ignored":
        text = "{p} asks the store to remove {b}, is refused and waits for it no more"
        yield Step(text, PLAIN, world, primary, without_view(backup, role.epoch))


def _asked(primary: Broker, backup: Broker, view: View, world: World, text: str) -> Step:
    assert primary.role is not None
    asking = primary._replace(role=primary.role._replace(busy=1))
    return Step(text, PLAIN, world, asking, with_view(backup, view._replace(change=1))._replace(flight=1))


def _change(rules: Rules, world: World, primary: Broker, backup: Broker, view: View) -> Iterator[Step]:
    """The outcome of a change that ``primary`` has asked for."""
    role = primary.role
    assert role is not None
    if world.epoch != role.epoch:
        return  # refused; it hears of the higher epoch, and until then all stays as it is
    add = not backup.listed
    rest = None if rules.bug == "version-not-compared" else PURGE
    landed = backup._replace(listed=int(add), flight=0)
    if rest is not None:
        landed = purged(landed)
    verb = "added to" if add else "removed from"
    spent = world._replace(lost=world.lost - 1)
    forgets = rules.bug == "lost-add-is-not-done" and not view.listed
    settled = role._replace(busy=0, over=0, behind=0)
    if backup.flight:
        known, adopted = _adopted(rules, primary._replace(role=settled), landed, view)
        yield Step(f"{{b}} is {verb} the set", PLAIN, world, known, adopted, rest)
        if world.lost:
            text = f"{{b}} is {verb} the set; the answer is lost"
            after = landed
            behind: Role = role._replace(over=0, behind=1)
            if forgets:
                after, behind = with_view(landed, view._replace(change=0)), settled
            yield Step(text, FAULT, spent, primary._replace(role=behind), after, rest)
        if world.lost and not role.over and not role.behind:
            yield from _late(rules, spent, primary, backup, view)
    if role.behind:
        known, adopted = _adopted(rules, primary._replace(role=settled), backup, view)
        yield Step("{p} reads the set back, it was changed", PLAIN, world, known, adopted)
    if role.over:
        failed = backup if rest is None else purged(backup)
        released = with_view(failed, view._replace(change=0))
        text = "{p} has written over it: whatever was on its way fails"
        yield Step(text, PLAIN, world, primary._replace(role=settled), released, rest)
        if world.lost:
            behind = role._replace(over=0, behind=1)
            text = "{p} has written over it; the answer is lost"
            yield Step(text, FAULT, spent, primary._replace(role=behind), failed, rest)


def _late(rules: Rules, spent: World, primary: Broker, backup: Broker, view: View) -> Iterator[Step]:
    """The request takes long: the set is read back and does not show it."""
    role = primary.role
    assert role is not None
    if rules.bug == "read-is-believed" or (rules.bug == "lost-add-is-not-done" and not view.listed):
        settled = primary._replace(role=role._replace(busy=0))
        after = with_view(backup, view._replace(change=0))
        text = "{p} hears nothing, reads the set back, finds it unchanged and takes that for final"
        yield Step(text, FAULT, spent, settled, after)
    else:
        writing = primary._replace(role=role._replace(over=1))
        text = "{p} hears nothing, reads the set back, finds it unchanged and writes over it"
        yield Step(text, FAULT, spent, writing, backup)


def _adopted(rules: Rules, primary: Broker, backup: Broker, view: View) -> tuple[Broker, Broker]:
    """The primary takes what the store holds for the set: only now does it stop waiting for who has left (Primary._adopt)."""
    if backup.listed:
        return primary, with_view(backup, view._replace(listed=1, guard=0, change=0))
    if rules.bug == "old-acknowledgements-count":
        return primary, with_view(backup, View(view.epoch, 0, view.acked))._replace(link=0)
    if view.listed or rules.bug == "expelled-after":
        return primary, without_view(backup, view.epoch)
    return primary, with_view(backup, view._replace(change=0))


def orphaned(world: World, backup: Broker) -> Iterator[Step]:
    """A request lands, under its epoch, that nobody waits for: its sender is gone, or has given it up (a mutation)."""
    if backup.flight:
        verb = "removed from" if backup.listed else "added to"
        landed = purged(backup)._replace(listed=1 - backup.listed)
        yield Step(f"a late request lands: {{b}} is {verb} the set", PLAIN, world, landed, rest=PURGE)
