"""The same of workloads that break rules, that are not replicated, and of distributed transactions."""

from __future__ import annotations

from functools import partial

from tests.simulator import calls
from tests.simulator.branch_steps import X, prepared
from tests.simulator.ledger import ClientTransaction
from tests.simulator.levels_kit import NONE, declare
from tests.simulator.scenario import Scenario
from tests.simulator.sim_client import Program, SimClient
from tests.simulator.tampering.deception import CLOSED, fill, instead, run, with_arguments
from tests.simulator.tampering.tampering import tampering
from tests.simulator.workloads.changeling import Changeling
from tests.simulator.workloads.distributed import Manager
from tests.simulator.workloads.levels import ALONE, DEFINED, Levels
from tests.simulator.workloads.odd_transactions import Sleeper
from tests.simulator.workloads.run import Run
from tests.simulator.workloads.vandal import BREACHES, Vandal
from understudy.broker.amqp.methods import CHANNEL_CLOSE, DTX_COMMIT_OK, QUEUE_DECLARE_OK
from understudy.broker.transactions.xa_status import XaStatus

# -- changeling, sleeper, vandal ------------------------------------------------------------------------------------


@tampering("workloads/changeling", "naming", "was closed")
def a_changeling_is_closed(group: Scenario) -> None:
    run(group, lambda client, each: Changeling(client, each).program(), instead(QUEUE_DECLARE_OK, CLOSED))


@tampering("workloads/odd_transactions", "protocol", "an idle transaction is ended with")
def an_idle_transaction_is_ended_by_an_error(group: Scenario) -> None:
    def asleep(client: SimClient, each: Run) -> Program:
        group.world.at(2_000_000, client.received, [CLOSED])
        return Sleeper(client, each).work(ClientTransaction(label="t", question="t"))

    run(group, asleep)


vandal = partial(tampering, "workloads/vandal")


@vandal("protocol", "was closed with {}, expected")
def a_breach_is_answered_otherwise(group: Scenario) -> None:
    name = "reserved queue"
    run(group, lambda client, each: Vandal(client, each)._expect(name, BREACHES[name][0], 404))


@vandal("protocol", "was accepted")
def a_breach_is_accepted(group: Scenario) -> None:
    name = "reserved queue"
    run(
        group,
        lambda client, each: Vandal(client, each)._expect(name, *BREACHES[name]),
        instead(CHANNEL_CLOSE, (1, QUEUE_DECLARE_OK, ("understudy.mine", 0, 0))),
    )


# -- levels ---------------------------------------------------------------------------------------------------------

levels = partial(tampering, "workloads/levels")


@levels("levels", "of the broker that leads still")
def the_broker_that_leads_counts_too_many(group: Scenario) -> None:
    run(
        group,
        lambda client, each: Levels(client, each).program(),
        with_arguments(QUEUE_DECLARE_OK, lambda name, _, consumers: (name, 1_000, consumers)),
    )


@levels("levels", "another broker leads, and {} holds")
def another_broker_holds_what_was_on_one(group: Scenario) -> None:
    fill(group, DEFINED, b"#1")
    run(group, lambda client, each: Levels(client, each)._another_leads())


@levels("levels", "another broker leads, and has")
def another_broker_has_a_queue_that_was_on_one(group: Scenario) -> None:
    fill(group, DEFINED)
    declare(group.hand(), ALONE, NONE)
    run(group, lambda client, each: Levels(client, each)._another_leads())


@levels("levels", "is gone, though it was declared")
def a_queue_that_was_declared_is_gone(group: Scenario) -> None:
    run(group, lambda client, each: Levels(client, each)._count("q"))


# -- distributed ----------------------------------------------------------------------------------------------------

distributed = partial(tampering, "workloads/distributed")
STARTED = ClientTransaction(label="t", question="")


def decide(client: SimClient, each: Run) -> Program:
    """Commit branch X, which is prepared."""
    yield from Manager(client, each)._decide(STARTED, X, commits=True, prepared=True)


@distributed("G4", "and then that there is no such branch")
def a_prepared_branch_is_not_there(group: Scenario) -> None:
    run(group, decide)


@distributed("G4", "and then that it was rolled back")
def a_prepared_branch_was_rolled_back(group: Scenario) -> None:
    prepared(group)
    run(group, decide, with_arguments(DTX_COMMIT_OK, lambda _: (XaStatus.RBROLLBACK,)))


@distributed("protocol", "the decision on {} is answered")
def a_decision_is_answered_by_an_error(group: Scenario) -> None:
    prepared(group)
    run(group, decide, instead(DTX_COMMIT_OK, CLOSED))


@distributed("G5", "was completed by an operator, and is listed as")
def what_an_operator_completed_is_not_listed(group: Scenario) -> None:
    run(group, lambda client, each: Manager(client, each)._completed(X))


@distributed("protocol", "{} is answered {}")
def an_ordinary_step_is_answered_otherwise(group: Scenario) -> None:
    def start(client: SimClient, each: Run) -> Program:
        yield from calls.dtx_select(client)
        yield from Manager(client, each)._over(calls.dtx_start(client, X), XaStatus.RBROLLBACK)

    run(group, start)
