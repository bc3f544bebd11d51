"""Checks of how a coordinator comes into a broker: version, base, calls that return, a null coordinator that is never asked."""

from __future__ import annotations

from understudy.broker.coordinators import API_VERSION, Coordinator, stated_version
from understudy.testing.coordinator_kit.call_times import CallTimes, NeverReturnsError
from understudy.testing.coordinator_kit.check import Whose, check, require
from understudy.testing.coordinator_kit.decision_checks import require_own_decisions
from understudy.testing.coordinator_kit.kit_client import Answer
from understudy.testing.coordinator_kit.kit_run import KitRun
from understudy.testing.coordinator_kit.subject import Subject


@check("C-08", last_if_it_fails=True)
def no_call_holds_the_broker(subject: Subject) -> None:
    """No call of the coordinator sleeps or waits: the broker serves nobody meanwhile."""
    held = [_held(subject) for _ in range(2)]  # a busy machine may hold one run
    require(not all(held), "C-08", f"the coordinator holds the broker: {held[-1]}")


def _held(subject: Subject) -> str:
    times = CallTimes()
    try:
        run = KitRun(subject, times=times)
        run.work(0)
    except NeverReturnsError as error:
        return str(error)
    return times.text


@check("C-36", whose=Whose.ALL)
def it_is_made_for_this_port(subject: Subject) -> None:
    """The class derives from Coordinator, states the version of the port, and can be made again and again."""
    plain = subject.coordinator
    require(
        isinstance(plain, type) and issubclass(plain, Coordinator), "C-36", f"{plain!r} is no subclass of Coordinator"
    )
    found = stated_version(plain)
    require(found is not None, "C-36", f"{plain.__name__} does not state its api_version, {API_VERSION}")
    require(
        found == API_VERSION, "C-36", f"{plain.__name__} is made for version {found} of the port, not {API_VERSION}"
    )
    for _ in range(2):
        run = KitRun(subject)
        run.work(0)
        require_own_decisions(run, "C-36")


@check("C-02", "C-03", whose=Whose.NULL)
def a_null_coordinator_is_never_asked(subject: Subject) -> None:
    """Where nothing is to be coordinated, each commit is one record, and log_and_order is not called."""
    run = KitRun(subject)
    run.work(0)
    for tx in run.broker.transactions:
        require(tx.answer is Answer.COMMITTED, "C-02", f"the null coordinator was asked of {tx.name}: {tx.reason}")
    facts = run.broker.facts()
    require(not facts.rolled_back, "C-03", f"{facts.rolled_back} have more than one record")
