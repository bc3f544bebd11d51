"""Messages between a primary and one backup: SYNC, RESUME, BATCH, STABLE, ACK, NO.

A link carries messages in order. What is said is heard at once or not at all: a message that is late is the same as one that
was sent late, since what it says (records, an acknowledged offset, a stable position) never becomes untrue on its link. What
the fsync of a backup delays is the acknowledgement alone, so append and fsync are one step unless ``Bounds.split`` asks.

Sources: DESIGN 3 to 5; replicator/receiving/broker_replicator.py, replicator/sending/log_sender.py,
ha/leading/admission.py (synchronize), ha/leading/primary.py (_refused).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.model import catch_up_steps
from tests.model.records import (
    CLOSED,
    COMMIT,
    COMMITTED,
    DTX_PREPARE,
    IN_DOUBT,
    PREPARE,
    ROLLBACK,
    ROLLED_BACK,
    B,
    C,
    Log,
    Tx,
    applied,
    apply,
    common_offset,
    kind_of,
    same_prefix,
    text_of,
    transaction,
)
from tests.model.rules import FAULT, PLAIN, TOLD_AHEAD, Rules, Step, append
from tests.model.state import (
    LACKS_OUTCOME,
    LOST_DATA,
    MUST_LEAVE,
    ROLLBACK_TOLD,
    WAITING,
    WON,
    Broker,
    Role,
    View,
    World,
    closed_end,
    no_stands,
    view_of,
    with_view,
    without_view,
)

STORE_NOT_READ: Final = ("lower-epoch-followed", "old-primary-followed-when-wiped", "epoch-known-in-memory")
"""Mutations in which a new process does not learn the epoch from the store."""


def steps(rules: Rules, world: World, primary: Broker, backup: Broker) -> Iterator[Step]:
    """Everything on the link between the two, but a catch-up's pieces."""
    role = primary.role
    assert role is not None
    if not backup.up or backup.role is not None:
        return
    view = view_of(backup, role.epoch)
    if backup.link != role.epoch:
        yield from _sync(rules, world, primary, backup, view)
        return
    yield from _batch(rules, world, primary, backup)
    yield from _stable(rules, world, primary, backup)
    if view is not None:
        yield from _ack(rules, world, primary, backup, view)
        if 0 < backup.no <= backup.synced:
            yield from _no(rules, world, primary, backup, view)


# -- linking --------------------------------------------------------------------------------------------------------------


def _sync(rules: Rules, world: World, primary: Broker, backup: Broker, view: View | None) -> Iterator[Step]:
    """SYNC and its answer. A listed broker is resumed, or it has to leave; it is never caught up."""
    role = primary.role
    assert role is not None
    if backup.campaign in (WAITING, WON) or (view is not None and view.change):
        return  # who campaigns has no link; whose place in the set is being settled gets none
    if role.epoch < backup.knows and rules.bug not in STORE_NOT_READ:
        return
    if role.epoch < backup.seen and rules.bug != "lower-epoch-followed":
        return
    if primary.seen < role.epoch and rules.bug not in ("epoch-known-by-the-store", "epoch-known-in-memory"):
        return  # nothing is sent under an epoch before EPOCH is fsynced
    common = common_offset(primary.log[: closed_end(primary)], backup.log)
    if common != same_prefix(primary.log[: closed_end(primary)], backup.log) and not rules.bug:
        yield Step(
            "{b} links to {p}", PLAIN, world, primary, backup, broken="log matching: equal positions, other records"
        )
        return
    # A log that begins with the base of a catch-up is kept from there on (KeptLog.reaches).
    continues = not backup.part and common >= max(backup.start, primary.start)
    if view is not None and view.listed:
        if continues and common >= role.stable:
            yield _resume(rules, world, primary, backup, view, common)
        else:
            leaving = LOST_DATA if common < role.stable else MUST_LEAVE
            if view.leaving < leaving:
                text = f"{{b}} says SYNC to {{p}}: its log is common up to {common}, stable is {role.stable}; it has to leave"
                yield Step(text, PLAIN, world, primary, with_view(backup, view._replace(leaving=leaving)))
        if rules.bug != "listed-is-caught-up":
            return
    trimmed = rules.bounds.trim and common + 1 < role.stable
    resumes = continues and not backup.no
    if resumes and not (view is not None and view.listed):
        yield _resume(rules, world, primary, backup, view or View(role.epoch, 0), common)
    if trimmed or not resumes:
        yield catch_up_steps.begin(rules, world, primary, backup, view or View(role.epoch, 0))


def _resume(rules: Rules, world: World, primary: Broker, backup: Broker, view: View, common: int) -> Step:
    """RESUME: the backup cuts what stands after ``common``, and repeats the noes that still stand."""
    role = primary.role
    assert role is not None
    # An ex-primary may cut what only its successors took for stable: nobody who follows it has been told so.
    broken = ""
    ended = role.epoch < world.epoch and backup.seen <= role.epoch
    if same_prefix(backup.log, world.chosen) > common and not ended:
        broken = "G3 isolated: a record that was stable, and may have been applied, is cut away"
    log = backup.log if rules.bug == "tail-is-kept" else backup.log[:common]
    tx = transaction(log)
    after = backup._replace(
        seen=max(backup.seen, role.epoch),
        log=log,
        synced=min(backup.synced, len(log)),
        no=backup.no if backup.no in (tx.prepare, tx.prepared) or rules.bug == "no-outlives-its-prepare" else 0,
        lacks=backup.lacks if tx.first else 0,
        sure=backup.sure if tx.closing else 0,
        link=role.epoch,
    )
    acked = view.acked if rules.bug == "old-acknowledgements-count" else 0
    after = with_view(after, view._replace(acked=acked, guard=0))
    cut = len(backup.log) - len(log)
    text = f"{{b}} says SYNC, {{p}} RESUME after {common}" + (f": {{b}} cuts {cut}" if cut else "")
    return Step(text, PLAIN, world, primary, after, broken=broken)


# -- the log flows ----------------------------------------------------------------------------------------------------------


def _batch(rules: Rules, world: World, primary: Broker, backup: Broker) -> Iterator[Step]:
    """BATCH: the next record is appended, and, unless ``split``, fsynced. A PREPARE is voted on before (_vote)."""
    at = len(backup.log)
    if at >= closed_end(primary) or (backup.filling is not None and backup.filling.owed):
        return
    raw = primary.log[at]
    kind = kind_of(raw)
    log = (*backup.log, raw)
    after = backup._replace(log=log, synced=backup.synced if rules.bounds.split else len(log))
    if kind == COMMIT:
        # The batch of a COMMIT states that its PREPARE is stable.
        after = after._replace(sure=2 if rules.bug == "commit-when-received" else max(after.sure, 1))
    if kind == ROLLBACK and rules.bug == "no-ends-when-rollback-comes":
        after = after._replace(no=0)
    after = _applying(after, backup.log, 0)
    text = f"{{b}} takes BATCH {text_of(raw)} from {{p}}"
    if kind not in _voted_on(rules):
        yield Step(text, PLAIN, world, primary, after)
        return
    if backup.lacks & (B | C) and rules.bug != "yes-without-looking":
        yield Step(f"{text}, lacks a part and notes a NO", PLAIN, world, primary, after._replace(no=len(log)))
        return
    yield Step(text, PLAIN, world, primary, after)
    if world.noes and not backup.lacks & (B | C):
        spent = world._replace(noes=world.noes - 1)
        refusing = after._replace(no=len(log), lacks=after.lacks | C)
        yield Step(f"{text}, finds its TxBuffer incomplete and notes a NO", FAULT, spent, primary, refusing)


def _voted_on(rules: Rules) -> tuple[int, ...]:
    """A branch is voted on when it is prepared, and on its commit nobody votes (RecordTaking.on_prepare)."""
    if rules.bug == "commit-is-voted-on":
        return (DTX_PREPARE, PREPARE)
    return (DTX_PREPARE,) if rules.bounds.branch else (PREPARE,)


def _stable(rules: Rules, world: World, primary: Broker, backup: Broker) -> Iterator[Step]:
    """STABLE, alone or with the newest batch: only who has been sent everything is told (LogSender.messages)."""
    role = primary.role
    assert role is not None
    if len(backup.log) < closed_end(primary) and rules.bug not in TOLD_AHEAD:
        return
    if len(backup.log) > len(primary.log):
        return
    after = told(rules, backup, role.stable)
    if after != backup:
        yield Step(f"{{p}} tells {{b}} STABLE {role.stable}", PLAIN, world, primary, after)


def told(rules: Rules, backup: Broker, stable: int) -> Broker:
    """``backup`` when it has been told that ``stable`` is stable."""
    tx = transaction(backup.log)
    after = backup
    if backup.no and tx.state == ROLLED_BACK and tx.outcome <= stable:
        after = after._replace(no=0)
    if tx.outcome and tx.outcome <= stable:
        after = after._replace(sure=0)
        if tx.state == ROLLED_BACK:
            after = after._replace(lacks=after.lacks & LACKS_OUTCOME)
    elif 0 < tx.closing <= stable:
        received = rules.bug == "commit-when-received" and tx.state == COMMITTED
        after = after._replace(sure=2 if received else max(after.sure, 1))
    return _applying(after, backup.log, stable)


def _applying(backup: Broker, before: Log, stable: int) -> Broker:
    """``backup``, whose log was ``before``, when it has applied what it now may: no transaction that it refused."""
    filling = backup.filling
    if filling is None or (backup.no and transaction(backup.log).state == COMMITTED):
        return backup
    told = max(stable, filling.told)
    after = applied(before, filling.told, start=backup.start)
    upto = applied(backup.log, told, start=backup.start)
    content = apply(filling.content, backup.log, after, upto, backup.lacks)
    return catch_up_steps.tidied(backup._replace(filling=filling._replace(told=told, content=content)))


def _ack(rules: Rules, world: World, primary: Broker, backup: Broker, view: View) -> Iterator[Step]:
    """ACK: everything up to an offset is fsynced there; never a PREPARE that is refused (BrokerReplicator.acknowledge).

    What a joiner acknowledges before it is guarded changes nothing and is heard when it is.
    """
    if not view.listed and not view.guard:
        return
    upto = len(backup.log) if rules.bug == "acknowledged-before-fsync" else backup.synced
    refused = no_stands(backup)
    if rules.bug == "no-outlives-its-prepare" and backup.no:
        refused = not any(kind_of(raw) == ROLLBACK for raw in backup.log)
    if refused and rules.bug != "acknowledged-past-no":
        upto = min(upto, backup.no - 1)
    upto = min(upto, closed_end(primary))
    if upto > view.acked:
        yield Step(
            f"{{b}} says ACK {upto} to {{p}}", PLAIN, world, primary, with_view(backup, view._replace(acked=upto))
        )


# -- refusing -----------------------------------------------------------------------------------------------------------------


def _no(rules: Rules, world: World, primary: Broker, backup: Broker, view: View) -> Iterator[Step]:
    """NO: it counts from a listed broker and before the decision; any other costs its sender the link (Primary._refused).

    It is repeated on every link until its ROLLBACK is known to be stable, also when it does not stand any more.
    """
    role = primary.role
    assert role is not None
    tx = transaction(primary.log)
    closed = tx.state in (CLOSED, IN_DOUBT) and backup.no in (tx.prepare, tx.prepared)
    undecided = closed and _in_time(rules, role, backup, tx)
    counts = (view.listed or rules.bug == "joiners-no-counts") and no_stands(backup)
    if counts and undecided and rules.bug == "no-is-a-yes":
        after = with_view(backup, view._replace(acked=max(view.acked, backup.no)))
        yield Step("{b} says NO to {p}, which takes it for an answer", PLAIN, world, primary, after)
    elif counts and undecided:
        after = with_view(backup, view._replace(leaving=max(view.leaving, MUST_LEAVE)))
        if rules.bug == "rollback-told-early":
            world = world._replace(facts=world.facts | ROLLBACK_TOLD)
        deciding = backup.no == tx.prepared and tx.state != IN_DOUBT
        broken = "the assertion of roll_back_closed: a no counts, and the branch is being committed" if deciding else ""
        text = "{b} says NO to {p}, which appends ROLLBACK"
        yield Step(text, PLAIN, world, append(primary, ROLLBACK), after, broken=broken)
    elif not view.listed:
        after = backup._replace(link=0) if view.change else without_view(backup, role.epoch)
        yield Step("{b}, not listed, says NO to {p}, which drops the link", PLAIN, world, primary, after)
    elif _comes_late(backup, tx, role.stable) and view.leaving < MUST_LEAVE:
        after = with_view(backup, view._replace(leaving=MUST_LEAVE))._replace(link=0)
        yield Step("{b} says NO to {p} after the decision: it has to leave", PLAIN, world, primary, after)


def _in_time(rules: Rules, role: Role, backup: Broker, tx: Tx) -> bool:
    """Before the transaction is decided, or the branch prepared.

    A promoted broker may have applied DTX_PREPARE, and take a no all the same until it serves: who is listed and refuses has not
    acknowledged it without a ROLLBACK, so nobody was told prepare-ok, or the manager has said rollback since.
    """
    if tx.state == IN_DOUBT and not role.active and rules.bug != "no-to-what-is-applied-is-late":
        return True
    return backup.no > role.stable


def _comes_late(backup: Broker, tx: Tx, stable: int) -> bool:
    """True if the no comes when the transaction is decided; of a branch, when it counts as prepared."""
    if tx.state in (IN_DOUBT, CLOSED) and backup.no == tx.prepared:
        return backup.no <= stable
    return tx.outcome > 0 and (tx.state == COMMITTED or tx.outcome <= stable)
