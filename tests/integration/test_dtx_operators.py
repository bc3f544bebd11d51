"""Branches that are decided by hand: what their transaction manager hears afterwards (H-47; docs/dtx.md, Operators)."""

from __future__ import annotations

import pika
import pytest

from tests.integration.dtx_channel import (
    COMPLETED_BY_COMMIT,
    COMPLETED_BY_ROLLBACK,
    HEURHAZ,
    OK,
    DtxChannel,
    InDoubt,
    Xid,
)
from tests.integration.dtx_places import CLERK
from tests.integration.dtx_workbench import Workbench, refused

pytestmark = pytest.mark.integration

BY_HAND = pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled-back"])


def prepared(bench: Workbench) -> tuple[Xid, str, str]:
    """A prepared branch that moves a message from queue to queue."""
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    bench.swapped(worker, xid, a, b)
    assert worker.prepare(xid) == OK
    return xid, a, b


@BY_HAND
def test_a_completed_branch_is_done_and_remembered_until_it_is_forgotten(bench: Workbench, commit: bool) -> None:
    xid, a, b = prepared(bench)
    operator, tm = bench.tm(), bench.tm()
    assert operator.complete(xid, commit=commit) == OK
    assert bench.counts(a, b) == ((0, 1) if commit else (1, 0))
    remembered = [InDoubt(COMPLETED_BY_COMMIT if commit else COMPLETED_BY_ROLLBACK, xid)]
    for _ in range(2):
        assert bench.in_doubt() == remembered
        assert tm.commit(xid) == HEURHAZ
        assert tm.rollback(xid) == HEURHAZ
    assert bench.counts(a, b) == ((0, 1) if commit else (1, 0)), "what the manager asked for changed nothing"
    assert tm.forget(xid) == OK
    assert bench.in_doubt() == []
    for verb in (DtxChannel.commit, DtxChannel.rollback, DtxChannel.forget):
        with refused(404):
            verb(bench.tm(), xid)


@BY_HAND
def test_forget_before_its_manager_has_asked(bench: Workbench, commit: bool) -> None:
    xid, _, _ = prepared(bench)
    operator = bench.tm()
    assert operator.complete(xid, commit=commit) == OK
    assert operator.forget(xid) == OK
    with refused(404):
        bench.tm().commit(xid)


@BY_HAND
def test_complete_again(bench: Workbench, commit: bool) -> None:
    """A completed branch is not prepared any more: completing it again is refused, with either decision."""
    xid, a, b = prepared(bench)
    assert bench.tm().complete(xid, commit=commit) == OK
    with refused(409):
        bench.tm().complete(xid, commit=not commit)
    with refused(409):
        bench.tm().complete(xid, commit=commit)
    assert bench.counts(a, b) == ((0, 1) if commit else (1, 0))


def test_commands_to_the_broker_need_their_permission(bench: Workbench) -> None:
    """The users of `dtx_places` have no `admin`: not even whoami."""
    for body in (b'{"command": "whoami"}', b'{"command": "no such"}'):
        channel = bench.channel()
        channel.basic_publish("understudy.admin", "", body, pika.BasicProperties(reply_to="q"))
        with refused(403, "admin access to command"):
            channel.queue_declare("", exclusive=True)
            channel.queue_declare("", exclusive=True)


def test_only_who_may_configure_it_completes(bench: Workbench) -> None:
    xid, a, b = prepared(bench)
    clerk = bench.connect(credentials=pika.PlainCredentials(CLERK, CLERK))
    with refused(403, "understudy.dtx"):
        bench.tm(clerk).complete(xid, commit=True)
    assert bench.counts(a, b) == (0, 0)
    assert bench.tm(clerk).rollback(xid) == OK, "what a transaction manager asks needs no such permission"
    assert bench.counts(a, b) == (1, 0)
