"""Recovery: the verdict is that of the record, whatever point the client has died at."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.unit.xa.rig import Rig
from understudy.xa.core.codes import XaCode
from understudy.xa.core.errors import RecoveryFailedError
from understudy.xa.core.manager.recovery import recover
from understudy.xa.core.manager.steps import Steps, Tell
from understudy.xa.core.register.attempts import FIRST_MS
from understudy.xa.core.register.entry import Entry
from understudy.xa.core.register.state import MAX_ATTEMPTS
from understudy.xa.core.register.wire import Decide, Done

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
        rig.run(one_step(Tell(Decide(transaction.gid, {"bank": "", "queues": ""}))))
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
    against = against or (decided and (code.rolled_back or code is XaCode.NOTA))  # of a prepared branch
    assert bool(rig.core.image(0)) == against
    assert rig.claimed() is None


def one_step(step: Tell) -> Steps[None]:
    yield step


def failed_recoveries(rig: Rig, times: int) -> Entry:
    """Recoveries fail one after the other, by programs that wait for none; the entry afterwards."""
    for _ in range(times):
        entry = rig.claimed(early=True)
        assert entry is not None
        with pytest.raises(RecoveryFailedError):
            rig.run(recover(entry))
    (left,) = rig.core.image(0)
    return left


def test_what_is_refused_often_enough_is_parked_and_new_work_goes_on() -> None:
    rig = Rig(bank="rollback=RMERR*", queues="")
    rig.begun()
    rig.leave()
    left = failed_recoveries(rig, MAX_ATTEMPTS)
    assert (left.parked, left.attempts, left.refusals) == (True, MAX_ATTEMPTS, MAX_ATTEMPTS)
    assert rig.claimed(early=True) is None
    rig.begun(2)


def test_a_resource_manager_that_is_down_parks_nothing_however_often_it_is_asked() -> None:
    rig = Rig(bank=" ".join(["rollback=RMFAIL"] * 10 * MAX_ATTEMPTS), queues="")
    rig.begun()
    rig.leave()
    left = failed_recoveries(rig, 10 * MAX_ATTEMPTS)
    assert (left.parked, left.attempts) == (False, 10 * MAX_ATTEMPTS)
    assert rig.recovered() == {"bank": "OK", "queues": "OK"}


def test_after_a_failure_the_next_recovery_is_due_later_and_new_work_goes_on() -> None:
    """Ten programs that come at once do not make ten attempts."""
    rig = Rig(bank="rollback=RMFAIL rollback=RMFAIL", queues="")
    rig.begun()
    rig.leave()
    for attempt in (1, 2):
        assert failed_recoveries(rig, 1).attempts == attempt
        for _ in range(10):
            assert rig.claimed() is None
        rig.begun(attempt + 1)
        rig.run(one_step(Tell(Done(f"{attempt + 1:064x}"))))
        rig.now_ms += FIRST_MS << attempt
    assert rig.claimed() is not None


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


DECIDED = STEPS_OF_A_COMMIT - 3


@pytest.mark.parametrize(
    ("told", "recorded"),
    [
        ("HEURCOM", None),  # the dead program has committed it, and could not say so
        ("HEURRB", XaCode.HEURRB),
        ("HEURHAZ", XaCode.HEURHAZ),
        ("RMERR", XaCode.HEURHAZ),
        ("", XaCode.HEURHAZ),  # a kind that gives no proof
    ],
)
def test_a_prepared_branch_that_is_gone_is_done_only_if_its_resource_manager_says_so(
    told: str, recorded: XaCode | None
) -> None:
    rig = Rig(bank=f"commit=NOTA* {f'outcome={told}*' if told else ''}", queues="")
    died_before(DECIDED, rig)
    assert rig.recovered()["queues"] == "OK"
    assert rig.called("queues")[-1] == "commit"
    left = rig.core.image(0)
    assert [one.heuristics for one in left] == ([{"bank": recorded}] if recorded else [])
    assert rig.core.counts()["heuristic"] == len(left)
    assert rig.claimed(early=True) is None


@pytest.mark.parametrize("told", ["RMFAIL", "RETRY"])
def test_a_branch_that_is_gone_waits_until_its_resource_manager_tells_what_became_of_it(told: str) -> None:
    rig = Rig(bank=f"commit=NOTA* outcome={told} outcome=HEURCOM", queues="")
    died_before(DECIDED, rig)
    entry = rig.claimed()
    assert entry is not None
    with pytest.raises(RecoveryFailedError, match=f"bank: {told}"):
        rig.run(recover(entry))
    assert rig.recovered()["bank"] == "OK"
    assert rig.core.image(0) == []


def test_a_branch_with_nothing_to_commit_is_no_hazard() -> None:
    rig = Rig(bank="prepare=RDONLY commit=NOTA*", queues="")
    died_before(DECIDED, rig)
    assert rig.recovered() == {"bank": "NOTA", "queues": "OK"}
    assert rig.core.image(0) == []


def test_a_record_of_an_older_program_does_not_tell_which_branches_are_prepared() -> None:
    rig = Rig(bank="commit=NOTA*", queues="")
    gid = rig.begun().gid
    rig.run(one_step(Tell(Decide(gid))))
    rig.leave()
    assert rig.recovered() == {"bank": "HEURHAZ", "queues": "OK"}
    assert rig.core.image(0)[0].heuristics == {"bank": XaCode.HEURHAZ}
