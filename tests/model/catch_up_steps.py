"""A catch-up: CATCH_UP, IDS, BASE, DROP, TRANSACTION, QUEUE, CAUGHT_UP beside the flowing log.

CATCH_UP to DROP are one step: nothing of the backup changes before BASE, and a broker that crashes between BASE and DROP
holds what any broker holds whose catch-up was broken off, and is treated as one. TRANSACTION is a step by itself, before
the first BATCH; behind it the base may be put again where the primary is by then, with DROP, and what the transaction got since
is owed anew. Each message is a QUEUE piece, read from the primary's live queue when it is sent. A piece is durable when it
is taken; PIECE_ACK and the trackers, which wait for it, are in the condition of the guard (set_steps): a broker is not
guarded before it has all pieces.

Sources: DESIGN 4 and 5 (tx catch-up); replicator/sending/catch_up.py, replicating_subscription.py, tx_replicating_subscription.py,
queue_replicator.py, broker_replicator.py (_take_base, _caught_up).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.records import (
    COMMITTED,
    DTX_PREPARE,
    TX_DEQUEUE,
    TX_ENQUEUE,
    A,
    B,
    C,
    D,
    E,
    Log,
    applied,
    content_of,
    kind_of,
    same_prefix,
    transaction,
)
from tests.model.rules import FAULT, PLAIN, Rules, Step
from tests.model.state import (
    LACKS_OUTCOME,
    LACKS_PREPARED,
    Broker,
    Filling,
    View,
    World,
    with_view,
)

MESSAGES = {A: "A", B: "B", C: "C", D: "D", E: "E"}
PIECES = {TX_ENQUEUE: C, TX_DEQUEUE: B, DTX_PREPARE: LACKS_PREPARED}
"""What a TRANSACTION piece brings, by kind of record: bits of ``Broker.lacks``."""
IN_PIECE = B | C | LACKS_PREPARED


def live_content(primary: Broker) -> int:
    """The content of the primary's queues now."""
    assert primary.role is not None
    return content_of(primary.log, primary.role.stable, True, primary.start)


def held_content(backup: Broker, chosen: Log) -> int:
    """The content of a backup that says IDS. One that follows the log has applied only stable records."""
    if backup.filling is not None:
        return backup.filling.content
    return content_of(backup.log, same_prefix(backup.log, chosen))


def begin(rules: Rules, world: World, primary: Broker, backup: Broker, view: View) -> Step:
    """CATCH_UP, IDS, BASE and DROP. The base is the primary's applied position (CatchUp.__init__, BrokerReplicator._take_base)."""
    role = primary.role
    assert role is not None
    base = applied(primary.log, role.stable, True, primary.start)
    live = live_content(primary)
    held = held_content(backup, world.chosen)
    kept = _kept(rules, held, live)
    after = based(rules, primary, backup, base, held, kept)
    broken = "G7 ready means promotable: a catch-up touches a listed broker" if backup.listed and view.listed else ""
    dropped = f" and DROP {names(held & ~kept)}" if held & ~kept else ""
    text = f"{{b}} says SYNC, {{p}} CATCH_UP; {{b}} IDS {names(held)}, {{p}} BASE {base}{dropped}"
    acked = view.acked if rules.bug == "old-acknowledgements-count" else 0
    return Step(text, PLAIN, world, primary, with_view(after, view._replace(acked=acked, guard=0)), broken=broken)


def _kept(rules: Rules, held: int, live: int) -> int:
    """The messages that a backup with ``held`` keeps at BASE and DROP."""
    if rules.bug == "nothing-is-dropped":
        return held
    return held & (live | A) if rules.bug == "moved-is-not-dropped" else held & live


def based(rules: Rules, primary: Broker, backup: Broker, base: int, held: int, kept: int) -> Broker:
    """BASE and DROP: the log begins behind ``base``, of the messages ``held`` it keeps some; what it lacks is to come."""
    role = primary.role
    assert role is not None
    tx = transaction(primary.log)
    todo = live_content(primary) & ~held
    if rules.bug == "skip-set-is-a-range":
        todo &= ~((1 << held.bit_length()) - 1)
    lacks = 0
    if tx.first and not (0 < tx.outcome <= base or (tx.state == COMMITTED and tx.prepare <= base)):
        for raw in primary.log[:base]:
            lacks |= PIECES.get(kind_of(raw), 0)
    owed = int(bool(lacks) and rules.bug not in ("no-tx-catch-up", "yes-without-looking"))
    if rules.bug == "outcomes-forgotten" and tx.state == COMMITTED and tx.outcome <= base:
        lacks |= LACKS_OUTCOME
    return backup._replace(
        seen=max(backup.seen, role.epoch),
        log=primary.log[:base],
        synced=base,
        start=base,
        no=0,
        lacks=lacks,
        sure=0,
        part=1,
        filling=Filling(base, kept, todo, owed),
        link=role.epoch,
    )


def again(rules: Rules, primary: Broker, backup: Broker, base: int) -> Broker:
    """TRANSACTION, and BASE further on, at ``base`` (CatchUp._go_on, BrokerReplicator._check_kept).

    The backup keeps of the transaction what it has just been sent, if that is undecided still.
    """
    filling = backup.filling
    assert filling is not None
    held = filling.content
    kept = _kept(rules, held, live_content(primary))
    after = based(rules, primary, backup, base, held, kept)
    assert after.filling is not None
    sent = 0
    for raw in primary.log[: backup.start]:
        sent |= PIECES.get(kind_of(raw), 0)
    lacks = after.lacks & ~(sent & _brought(rules))
    owed = after.filling.owed and lacks & IN_PIECE and rules.bug != "base-again-is-all"
    return after._replace(lacks=lacks, filling=after.filling._replace(owed=int(bool(owed))))


def _brought(rules: Rules) -> int:
    return IN_PIECE & ~LACKS_PREPARED if rules.bug == "prepare-not-in-catch-up" else IN_PIECE


def names(content: int) -> str:
    """The messages of a content, for people."""
    return "{" + ", ".join(name for bit, name in MESSAGES.items() if content & bit) + "}"


def steps(rules: Rules, world: World, primary: Broker, backup: Broker) -> Iterator[Step]:
    """The pieces after BASE and DROP."""
    role = primary.role
    assert role is not None
    filling = backup.filling
    if filling is None or not backup.part or backup.link != role.epoch or not backup.up:
        return
    if filling.owed:
        after = backup._replace(lacks=backup.lacks & ~_brought(rules), filling=filling._replace(owed=0))
        yield Step("{b} takes TRANSACTION from {p}", PLAIN, world, primary, after)
        if world.noes and backup.lacks & LACKS_PREPARED:
            # DTX_PREPARE is voted on wherever it comes from. This no ends the catch-up.
            spent = world._replace(noes=world.noes - 1)
            refusing = after._replace(no=transaction(backup.log).prepared, lacks=after.lacks | C)
            yield Step(
                "{b} takes TRANSACTION from {p}, finds it incomplete and notes a NO", FAULT, spent, primary, refusing
            )
        base = applied(primary.log, role.stable, True, primary.start)
        if base > backup.start:
            text = f"{{b}} takes TRANSACTION and BASE {base} from {{p}}"
            yield Step(text, PLAIN, world, primary, again(rules, primary, backup, base))
    elif filling.todo:
        message = filling.todo & -filling.todo
        there = live_content(primary) & message or (message if rules.bug == "pieces-from-a-copy" else 0)
        todo = filling.todo & ~message
        if message == A and not there and live_content(primary) & E and rules.bug != "catch-up-forgets-what-moves":
            todo |= E  # A has moved, and the backup cannot make E of it (CatchUp.moved)
        rest = filling._replace(content=filling.content | there, todo=todo)
        verb = "takes QUEUE" if there else "is not sent (it has left its queue)"
        text = f"{{b}} {verb} {MESSAGES[message]} from {{p}}"
        yield Step(text, PLAIN, world, primary, backup._replace(filling=rest))
    else:
        yield Step("{b} takes CAUGHT_UP from {p}", PLAIN, world, primary, tidied(backup._replace(part=0)))


def tidied(backup: Broker) -> Broker:
    """A broker whose content is what its log says needs no account of it."""
    filling = backup.filling
    if filling is None or backup.part or filling.content != content_of(backup.log, filling.told):
        return backup
    tx = transaction(backup.log)
    sure = int(0 < tx.closing <= filling.told and not 0 < tx.outcome <= filling.told)
    return backup._replace(filling=None, sure=max(sure, backup.sure))
