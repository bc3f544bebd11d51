"""A transaction manager's work: the order of its steps, and every answer to every verb."""

from __future__ import annotations

import pytest

from tests.unit.xa.rig import Rig
from understudy.xa.core.codes import XaCode
from understudy.xa.core.errors import (
    HeuristicCommitError,
    HeuristicError,
    HeuristicHazardError,
    HeuristicMixedError,
    HeuristicRollbackError,
    OutcomeUnknownError,
    ProtocolError,
    RecoverFirstError,
    RecoveryFailedError,
    RolledBackError,
    StateServerLostError,
)
from understudy.xa.core.manager.recovery import recover
from understudy.xa.core.manager.steps import Flag
from understudy.xa.core.states import Outcome, TxState

NOT_OK = [code for code in XaCode if code is not XaCode.OK]


def test_the_order_of_a_commit() -> None:
    rig = Rig(bank="", queues="")
    transaction = rig.begun()
    assert rig.run(transaction.commit()) is Outcome.COMMITTED
    assert rig.trace == [
        "tell.begin", "start.bank", "start.queues", "tell.started", "end.bank", "end.queues", "prepare.bank",
        "prepare.queues", "tell.decide", "commit.bank", "commit.queues", "tell.done",
    ]  # fmt: skip
    assert rig.core.image(0) == []


def test_one_resource_manager_commits_in_one_phase() -> None:
    rig = Rig(bank="")
    assert rig.run(rig.begun().commit()) is Outcome.COMMITTED
    assert rig.trace == ["tell.begin", "start.bank", "tell.started", "end.bank", "commit.bank", "tell.done"]
    assert rig.resources["bank"].calls[-1].flags is Flag.ONE_PHASE


def test_read_only_branches_are_not_committed() -> None:
    rig = Rig(bank="prepare=RDONLY", queues="")
    assert rig.run(rig.begun().commit()) is Outcome.COMMITTED
    assert rig.called("bank") == ["start", "end", "prepare"]
    assert rig.called("queues")[-1] == "commit"


def test_only_read_only_branches_need_no_decision() -> None:
    rig = Rig(bank="prepare=RDONLY", queues="prepare=RDONLY")
    assert rig.run(rig.begun().commit()) is Outcome.READ_ONLY
    assert "tell.decide" not in rig.trace
    assert rig.core.image(0) == []


def test_the_vote_decides_and_nothing_but_the_finish_follows() -> None:
    rig = Rig(bank="", queues="")
    transaction = rig.begun()
    with pytest.raises(ProtocolError, match="is active: finish is out of turn"):
        rig.run(transaction.finish())
    assert rig.run(transaction.vote()) is None
    assert rig.trace[-1] == "tell.decide"
    assert rig.core.image(0)[0].commit
    for call in (transaction.rollback, transaction.vote, transaction.suspend):
        with pytest.raises(ProtocolError, match="is decided"):
            rig.run(call())
    assert rig.run(transaction.finish()) is Outcome.COMMITTED
    assert rig.trace[-3:] == ["commit.bank", "commit.queues", "tell.done"]
    assert transaction.state is TxState.OVER


def test_a_vote_without_a_second_phase_is_the_outcome() -> None:
    assert (rig := Rig(bank="")).run(rig.begun().vote()) is Outcome.COMMITTED
    rig = Rig(bank="prepare=RDONLY", queues="prepare=RDONLY")
    transaction = rig.begun()
    assert rig.run(transaction.vote()) is Outcome.READ_ONLY
    assert transaction.state is TxState.OVER


@pytest.mark.parametrize("code", NOT_OK)
def test_a_start_that_is_not_ok_rolls_back_what_was_started(code: XaCode) -> None:
    rig = Rig(bank="", queues=f"start={code.name}", third="")
    transaction = rig.transaction()
    with pytest.raises(RolledBackError, match=f"queues: {code.name}"):
        rig.run(transaction.begin(rig.resources))
    assert rig.called("bank") == ["start", "end", "rollback"]
    assert rig.called("third") == []
    assert transaction.state is TxState.OVER
    assert rig.core.image(0) == []


@pytest.mark.parametrize("code", NOT_OK)
def test_an_end_that_is_not_ok_rolls_back(code: XaCode) -> None:
    rig = Rig(bank=f"end={code.name}", queues="")
    transaction = rig.begun()
    with pytest.raises(RolledBackError, match=f"bank: {code.name}"):
        rig.run(transaction.commit())
    assert rig.called("bank") == rig.called("queues") == ["start", "end", "rollback"]


@pytest.mark.parametrize("code", [code for code in NOT_OK if code is not XaCode.RDONLY])
def test_a_prepare_that_is_not_ok_rolls_back_all(code: XaCode) -> None:
    rig = Rig(bank="", queues=f"prepare={code.name}")
    transaction = rig.begun()
    with pytest.raises(RolledBackError) as raised:
        rig.run(transaction.commit())
    assert raised.value.reasons == {"queues": f"{code.name} (as the script says)"}
    assert rig.called("bank") == ["start", "end", "prepare", "rollback"]
    assert rig.called("queues")[3:] == ([] if code.rolled_back else ["rollback"])
    assert "tell.decide" not in rig.trace
    assert rig.core.image(0) == []


AFTER_THE_DECISION: dict[XaCode, Outcome | type[HeuristicError]] = {
    XaCode.HEURCOM: Outcome.COMMITTED,
    XaCode.HEURRB: HeuristicMixedError,
    XaCode.HEURMIX: HeuristicMixedError,
    XaCode.HEURHAZ: HeuristicHazardError,
    XaCode.NOTA: HeuristicHazardError,
    **{code: HeuristicMixedError for code in XaCode if code.rolled_back},
}


@pytest.mark.parametrize("code", NOT_OK)
def test_a_commit_that_is_not_ok(code: XaCode) -> None:
    rig = Rig(bank="", queues=f"commit={code.name}*")
    transaction = rig.begun()
    wanted = AFTER_THE_DECISION.get(code, Outcome.COMMIT_PENDING)
    if isinstance(wanted, Outcome):
        assert rig.run(transaction.commit()) is wanted
    else:
        with pytest.raises(wanted) as raised:
            rig.run(transaction.commit())
        assert raised.value.committed
        assert list(raised.value.answers) == ["queues"]
    left = rig.core.image(0)
    assert len(left) == (wanted is not Outcome.COMMITTED)
    for entry in left:
        assert (entry.commit, bool(entry.heuristics)) == (True, wanted is not Outcome.COMMIT_PENDING)
    assert ("forget" in rig.called("queues")) == (code in AFTER_THE_DECISION)


def test_a_busy_branch_is_asked_again() -> None:
    rig = Rig(bank="commit=RETRY commit=RETRY", queues="")
    assert rig.run(rig.begun().commit()) is Outcome.COMMITTED
    assert (rig.called("bank").count("commit"), rig.waits) == (3, 2)


def test_all_branches_rolled_back_against_the_decision() -> None:
    rig = Rig(bank="commit=HEURRB", queues="commit=HEURRB")
    with pytest.raises(HeuristicRollbackError, match="decided as commit"):
        rig.run(rig.begun().commit())


@pytest.mark.parametrize("code", NOT_OK)
def test_a_rollback_that_is_not_ok(code: XaCode) -> None:
    rig = Rig(bank=f"rollback={code.name}*", queues="")
    transaction = rig.begun()
    wanted = {
        XaCode.HEURCOM: HeuristicMixedError,
        XaCode.HEURMIX: HeuristicMixedError,
        XaCode.HEURHAZ: HeuristicHazardError,
    }.get(code)
    if wanted is None:
        rig.run(transaction.rollback())
    else:
        with pytest.raises(wanted, match="decided as rollback"):
            rig.run(transaction.rollback())
    done = code.rolled_back or code in (XaCode.NOTA, XaCode.HEURRB)
    assert bool(rig.core.image(0)) != done


def test_all_branches_committed_against_a_rollback() -> None:
    rig = Rig(bank="rollback=HEURCOM", queues="rollback=HEURCOM")
    with pytest.raises(HeuristicCommitError):
        rig.run(rig.begun().rollback())


@pytest.mark.parametrize("code", NOT_OK)
def test_a_commit_in_one_phase_that_is_not_ok(code: XaCode) -> None:
    rig = Rig(bank=f"commit={code.name}")
    transaction = rig.begun()
    error = {
        XaCode.HEURRB: HeuristicRollbackError,
        XaCode.HEURMIX: HeuristicMixedError,
        XaCode.HEURHAZ: HeuristicHazardError,
        XaCode.RMFAIL: OutcomeUnknownError,
    }.get(code, RolledBackError)
    if code in (XaCode.HEURCOM, XaCode.RDONLY):
        assert rig.run(transaction.commit()) is (Outcome.READ_ONLY if code is XaCode.RDONLY else Outcome.COMMITTED)
        return
    with pytest.raises(error):
        rig.run(transaction.commit())


# -- the state server is lost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["", "-"])
def test_without_the_record_no_branch_is_started(how: str) -> None:
    rig = Rig(bank="", queues="", lost=f"{how}begin")
    with pytest.raises(StateServerLostError):
        rig.run(rig.transaction().begin(rig.resources))
    assert rig.trace == ["tell.begin"]
    assert len(rig.core.image(0)) == (0 if how else 1)


@pytest.mark.parametrize("how", ["", "-"])
def test_a_lost_answer_to_the_decision_leaves_the_branches_to_recovery(how: str) -> None:
    rig = Rig(bank="", queues="", lost=f"{how}decide")
    with pytest.raises(OutcomeUnknownError):
        rig.run(rig.begun().commit())
    assert rig.called("bank")[-1] == rig.called("queues")[-1] == "prepare"
    assert rig.recovered() == {"bank": "OK", "queues": "OK"}
    verb = "rollback" if how else "commit"
    assert rig.called("bank")[-1] == rig.called("queues")[-1] == verb
    assert rig.core.image(0) == []


def test_a_lost_answer_to_done_changes_nothing() -> None:
    script = "commit=OK commit=NOTA outcome=HEURCOM"
    rig = Rig(bank=script, queues=script, lost="-done")
    assert rig.run(rig.begun().commit()) is Outcome.COMMITTED
    rig.lost = ""
    assert rig.recovered() == {"bank": "OK", "queues": "OK"}
    assert rig.core.image(0) == []


def test_a_branch_that_another_client_has_recovered_is_no_hazard() -> None:
    """The link broke behind the decision: the record was recovered by somebody else, so the branch is gone."""
    rig = Rig(bank="commit=NOTA", queues="commit=NOTA", lost="-heuristic")
    assert rig.run(rig.begun().commit()) is Outcome.COMMIT_PENDING


def test_a_decision_that_is_refused_rolls_back() -> None:
    rig = Rig(bank="", queues="")
    transaction = rig.begun()
    rig.leave()  # the server has lost this client, which does not know it
    with pytest.raises(RolledBackError, match="refused the decision"):
        rig.run(transaction.commit())
    assert rig.called("bank")[-1] == "rollback"


# -- joining, leaving, suspending -------------------------------------------------------------------------------------


def test_resource_managers_join_and_leave() -> None:
    rig = Rig(bank="", queues="")
    transaction = rig.transaction()
    rig.run(transaction.begin(["bank"]))
    rig.run(transaction.join("queues"))
    rig.run(transaction.leave("queues"))
    rig.run(transaction.join("queues"))
    rig.run(transaction.join("queues"))
    assert rig.trace[3:] == ["tell.join", "start.queues", "tell.started", "end.queues", "start.queues"]
    assert [call.flags for call in rig.resources["queues"].calls] == [Flag.NONE, Flag.NONE, Flag.JOIN]
    assert rig.core.image(0)[0].resources == ["bank", "queues"]
    assert rig.run(transaction.commit()) is Outcome.COMMITTED


def test_one_that_cannot_join_rolls_back() -> None:
    rig = Rig(bank="", queues="start=RMERR")
    transaction = rig.transaction()
    rig.run(transaction.begin(["bank"]))
    with pytest.raises(RolledBackError, match="queues: RMERR"):
        rig.run(transaction.join("queues"))
    assert rig.called("bank") == ["start", "end", "rollback"]


def test_suspend_and_resume() -> None:
    rig = Rig(bank="", queues="")
    transaction = rig.begun()
    rig.run(transaction.suspend())
    with pytest.raises(ProtocolError, match="suspended: commit is out of turn"):
        rig.run(transaction.commit())
    rig.run(transaction.resume())
    flags = [call.flags for call in rig.resources["bank"].calls]
    assert flags == [Flag.NONE, Flag.SUSPEND, Flag.RESUME]
    assert rig.run(transaction.commit()) is Outcome.COMMITTED


def test_a_suspended_transaction_can_be_rolled_back() -> None:
    rig = Rig(bank="", queues="")
    transaction = rig.begun()
    rig.run(transaction.suspend())
    rig.run(transaction.rollback())
    assert rig.called("bank") == ["start", "end", "start", "end", "rollback"]


def test_calls_out_of_turn_change_nothing() -> None:
    rig = Rig(bank="", queues="")
    transaction = rig.transaction()
    for steps in (transaction.commit(), transaction.rollback(), transaction.suspend(), transaction.resume()):
        with pytest.raises(ProtocolError, match="is new"):
            rig.run(steps)
    rig.run(transaction.begin(rig.resources))
    with pytest.raises(ProtocolError, match="is active: begin is out of turn"):
        rig.run(transaction.begin(rig.resources))
    assert rig.run(transaction.commit()) is Outcome.COMMITTED
    with pytest.raises(ProtocolError, match="is over"):
        rig.run(transaction.commit())


def test_recovery_comes_before_new_work() -> None:
    rig = Rig(bank="", queues="")
    rig.begun(1)
    rig.leave()
    assert rig.claimed() is not None
    rig.leave()
    other = Rig(core=rig.core, bank="", queues="")
    with pytest.raises(RecoverFirstError):
        other.run(other.transaction(2).begin(other.resources))
    assert other.recovered() == {"bank": "OK", "queues": "OK"}
    assert other.run(other.begun(2).commit()) is Outcome.COMMITTED


@pytest.mark.parametrize("code", ["HEURRB", "NOTA"])
def test_a_branch_that_is_left_beside_a_heuristic_one_is_recovered(code: str) -> None:
    """The entry stays for people, and recovery goes on with the branch that could not be reached."""
    rig = Rig(bank=f"commit={code}", queues="commit=RMFAIL commit=RMFAIL")
    with pytest.raises(HeuristicError):
        rig.run(rig.begun().commit())
    entry = rig.claimed()
    assert entry is not None
    with pytest.raises(RecoveryFailedError, match="queues: RMFAIL"):
        rig.run(recover(entry))
    assert rig.recovered()["queues"] == "OK"
    (left,) = rig.core.image(0)
    assert (set(left.heuristics), left.unfinished) == ({"bank"}, False)
    assert rig.claimed() is None
    assert rig.core.counts()["heuristic"] == 1
    rig.begun(2)
