"""Steps of one broker: its disk, its process, its data directory.

Sources: DESIGN 3, 9 and 13; broker/log/journal.py, broker/core/life/recovery.py, ha/ha_broker.py (step_down), decision 0007.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.records import COMMITTED, epoch_of, transaction
from tests.model.rules import FAULT, PLAIN, RESTART, Rest, Rules, Step
from tests.model.state import FORGOTTEN, IDLE, WAITING, Broker, World, closed_end


def steps(rules: Rules, world: World, broker: Broker) -> Iterator[Step]:
    """Everything but promotion and the work of clients."""
    if not broker.up:
        yield Step("{b} restarts", RESTART, world, broker._replace(up=1, knows=world.epoch))
        return
    role = broker.role
    if role is not None:
        yield from _primary(rules, world, broker)
    elif broker.synced < len(broker.log):
        yield Step("{b} fsyncs", PLAIN, world, broker._replace(synced=len(broker.log)))
    if world.crashes:
        spent = world._replace(crashes=world.crashes - 1)
        after, rest = crashed(rules, broker)
        lost = len(broker.log) - len(after.log)
        text = "{b} crashes" + (f" and loses {lost} of its {len(broker.log)} records" if lost else "")
        yield Step(text, FAULT, spent, after, rest=rest)
    if world.wipes:
        spent = world._replace(wipes=world.wipes - 1)
        _, rest = crashed(rules, broker)
        yield Step("{b} crashes, and its data directory is lost", FAULT, spent, _emptied(broker), rest=rest)


def _primary(rules: Rules, world: World, broker: Broker) -> Iterator[Step]:
    role = broker.role
    assert role is not None
    end = closed_end(broker)
    if broker.synced < end:
        yield Step("{b} fsyncs", PLAIN, world, broker._replace(synced=end, seen=role.epoch))
    if role.open:
        yield Step("{b} closes the batch that holds COMMIT", PLAIN, world, broker._replace(role=role._replace(open=0)))
    if world.epoch > role.epoch:
        # The core is dropped and recovered from the journal, in the same process.
        after = broker._replace(
            seen=role.epoch, log=broker.log[:end], synced=end, role=None, knows=world.epoch, sure=_sure(broker, end)
        )
        text = f"{{b}} hears of epoch {world.epoch}, steps down"
        yield Step(text, PLAIN, world, after, rest=("forget", role.epoch, 0))


def crashed(rules: Rules, broker: Broker) -> tuple[Broker, Rest | None]:
    """``broker`` after the end of its process, and what that does to others."""
    log = broker.log[: broker.synced]
    seen = broker.seen
    if rules.bug in ("epoch-known-by-the-store", "epoch-known-in-memory"):
        seen = max((epoch_of(raw) for raw in log), default=0)
    after = broker._replace(
        up=0,
        knows=0,
        seen=seen,
        log=log,
        no=broker.no if broker.no <= len(log) else 0,
        sure=_sure(broker, len(log)),
        filling=broker.filling._replace(todo=0, owed=0) if broker.filling is not None else None,
        link=0,
        campaign=FORGOTTEN if broker.campaign in (WAITING, FORGOTTEN) else IDLE,
        role=None,
    )
    return after, ("forget", broker.role.epoch, 0) if broker.role is not None else None


def _sure(broker: Broker, end: int) -> int:
    """The ``sure`` of a broker that keeps its log up to ``end``: whether it recovers the knowledge that PREPARE is stable.

    Batches tell it, and which did is not part of the model: it is kept where it may be, that being the worse case. The batch
    that holds a COMMIT always tells it. A primary's own batches tell it of a DTX_PREPARE, those before the decision apart.
    """
    role = broker.role
    if role is not None:
        tx = transaction(broker.log)
        if 0 < tx.prepared <= role.stable and end > max(tx.prepared, tx.outcome):
            return 1
    if transaction(broker.log[:end]).state == COMMITTED:
        return max(broker.sure, 1)
    return broker.sure if end == len(broker.log) else 0


def _emptied(broker: Broker) -> Broker:
    """A new data directory; what the store and the primaries say of the broker they go on saying."""
    return broker._replace(
        up=0,
        seen=0,
        knows=0,
        log=(),
        synced=0,
        start=0,
        no=0,
        lacks=0,
        sure=0,
        part=0,
        filling=None,
        link=0,
        campaign=FORGOTTEN if broker.campaign in (WAITING, FORGOTTEN) else IDLE,
        role=None,
    )
