"""Recovery: the verdict is that of the record, whatever point the client has died at."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.unit.xa.rig import Rig
from understudy.xa.core.codes import XaCode
from understudy.xa.core.errors import RecoveryFailedError
from understudy.xa.core.recovery import recover
from understudy.xa.core.state import MAX_ATTEMPTS
from understudy.xa.core.steps import Steps, Tell
from understudy.xa.core.wire import Decide

STEPS_OF_A_COMMIT = 12


def died_before(step: int, rig: Rig) -> None:
    """The client has carried out this many steps of a transaction, and is gone."""

    class DiedError(Exception):
        pass

    carried_out = rig.carry_out
    left = step

    def counted(one: Any) -> Any:
        nonlocal left
        if not left:
            raise DiedError
        left -= 1
        return carried_out(one)

    rig.carry_out = counted
    with contextlib.suppress(DiedError):
        rig.run(rig.begun().commit())
    rig.carry_out = carried_out
    rig.leave()


@pytest.mark.parametrize("step", range(STEPS_OF_A_COMMIT + 1))
def test_dead_at_each_step(step: int) -> None:
    rig = Rig(bank="", queues="")
    died_before(step, rig)
    decided = step > rig.trace.index("tell.decide") if "tell.decide" in rig.trace else False
    answers = rig.recovered()
    if step in (0, STEPS_OF_A_COMMIT):
        assert answers == {}
    else:
        assert answers == {"bank": "OK", "queues": "OK"}
        last = "commit" if decided else "rollback"
        assert rig.called("bank")[-1] == rig.called("queues")[-1] == last
    assert rig.core.image(0) == []


@pytest.mark.parametrize("decided", [False, True])
@pytest.mark.parametrize("code", list(XaCode))
def test_every_answer_to_recovery(code: XaCode, decided: bool) -> None:
    rig = Rig(bank=f"commit={code.name}* rollback={code.name}*", queues="")
    transaction = rig.begun()
    if decided:
        rig.run(one_step(Tell(Decide(transaction.gid))))
    rig.leave()
    entry = rig.claimed()
    assert entry is not None
    done = code in (XaCode.OK, XaCode.NOTA) or code.heuristic or code.rolled_back
    if not done:
        with pytest.raises(RecoveryFailedError, match=f"bank: {code.name}"):
            rig.run(recover(entry))
        (left,) = rig.core.image(0)
        assert (left.attempts, left.parked, left.reason) == (1, False, f"bank: {code.name} (as the script says)")
        return
    rig.run(recover(entry))
    against = code.heuristic and code is not (XaCode.HEURCOM if decided else XaCode.HEURRB)
    against = against or (decided and code.rolled_back)  # the commit of a prepared branch
    assert bool(rig.core.image(0)) == against
    assert rig.claimed() is None


def one_step(step: Tell) -> Steps[None]:
    yield step


def test_after_enough_failures_it_is_parked_and_new_work_goes_on() -> None:
    rig = Rig(bank="rollback=RMFAIL*", queues="")
    rig.begun()
    rig.leave()
    for _ in range(MAX_ATTEMPTS):
        entry = rig.claimed()
        assert entry is not None
        with pytest.raises(RecoveryFailedError):
            rig.run(recover(entry))
    assert rig.claimed() is None
    (left,) = rig.core.image(0)
    assert (left.parked, left.attempts) == (True, MAX_ATTEMPTS)
    rig.begun(2)


def test_a_client_that_dies_in_recovery_gives_it_back() -> None:
    rig = Rig(bank="", queues="")
    rig.begun()
    rig.leave()
    assert rig.claimed() is not None
    rig.leave()
    assert rig.recovered() == {"bank": "OK", "queues": "OK"}


def test_dead_between_a_branch_that_is_gone_and_the_next_one() -> None:
    """A branch was completed by hand, which is recorded; then the client dies before it commits the other branch."""
    rig = Rig(bank="commit=NOTA", queues="")
    died_before(STEPS_OF_A_COMMIT - 1, rig)
    assert rig.trace[-1] == "tell.heuristic"
    assert rig.recovered()["queues"] == "OK"
    assert rig.called("queues")[-1] == "commit"
    (left,) = rig.core.image(0)
    assert left.heuristics == {"bank": XaCode.HEURHAZ}
