"""Things that a client of a workload finds, or is told, are falsified; its own checks must see that."""

from __future__ import annotations

from functools import partial
from itertools import count

from tests.simulator import calls
from tests.simulator.ledger import ClientTransaction, Told
from tests.simulator.scenario import Scenario
from tests.simulator.sim_client import Program, SimClient
from tests.simulator.tampering.deception import CLOSED, fill, instead, run, with_arguments
from tests.simulator.tampering.tampering import tampering
from tests.simulator.workloads.bank import Bank
from tests.simulator.workloads.fleeting import Fleeting
from tests.simulator.workloads.inquirer import Inquirer
from tests.simulator.workloads.plain import FIFO, Consumer
from tests.simulator.workloads.ring import RING, Runner
from tests.simulator.workloads.router import Router
from tests.simulator.workloads.run import Run
from understudy.broker.amqp.methods import (
    BASIC_DELIVER,
    BASIC_GET_EMPTY,
    BASIC_GET_OK,
    BASIC_RETURN,
    QUEUE_DECLARE_OK,
)
from understudy.broker.amqp.properties import encode_properties

# -- ring -----------------------------------------------------------------------------------------------------------

ring = partial(tampering, "workloads/ring")


def take_token(group: Scenario, known: dict[str, int]) -> None:
    """A runner whose only queue that is not empty is the first; "token" is there, at hop 0."""
    for queue in RING[1:]:
        fill(group, queue)
    run(group, lambda client, each: Runner(client, each, known, False).program())


@ring("G1", "and lies in")
def a_token_is_in_a_wrong_place(group: Scenario) -> None:
    fill(group, RING[0], b"#t/token token 1")
    take_token(group, {})


@ring("G4", "was told committed before")
def a_token_is_back_where_it_was(group: Scenario) -> None:
    fill(group, RING[0], b"#t/token token 0")
    take_token(group, {"token": 5})


@ring("G1", "of this transaction")
def a_token_is_there_twice(group: Scenario) -> None:
    fill(group, RING[0], b"#t/token token 0", b"#u/token token 0")

    def twice(client: SimClient, each: Run) -> Program:
        runner = Runner(client, each, {}, False)
        runner._carried = {"token": 1}
        event = yield from calls.get(client, RING[0])
        runner._read(event[4], {}, 0)

    run(group, twice)


# -- fifo, inquirer, transactor -------------------------------------------------------------------------------------


@tampering("workloads/plain", "G9", "on one connection")
def two_messages_have_changed_places(group: Scenario) -> None:
    fill(group, FIFO, b"#p:000002", b"#p:000001")
    run(group, lambda client, each: Consumer(client, each, FIFO).program())


@tampering("workloads/inquirer", "G8", "outcome of")
def an_inquirer_is_not_told_an_outcome(group: Scenario) -> None:
    group.cluster.run_state.in_flight.append("t-1")
    run(group, lambda client, each: Inquirer(client, each).program(), (BASIC_DELIVER, lambda e: (*e[:4], b"perhaps")))


@tampering("workloads/transactor", "G8", "outcome of")
def one_that_must_know_is_not_told_an_outcome(group: Scenario) -> None:
    asked = ClientTransaction(label="t", question="t", told=Told.UNKNOWN)
    run(
        group,
        lambda client, each: Bank(client, each, 0)._resolve(asked),
        (BASIC_DELIVER, lambda event: (*event[:4], b"expired")),
    )


# -- fleeting -------------------------------------------------------------------------------------------------------

fleeting = partial(tampering, "workloads/fleeting")


@fleeting("naming", "was closed")
def who_declares_what_it_may_is_closed(group: Scenario) -> None:
    run(group, lambda client, each: Fleeting(client, each).program(), instead(QUEUE_DECLARE_OK, CLOSED))


@fleeting("G3", "are counted that live for no time")
def what_lives_for_no_time_is_counted(group: Scenario) -> None:
    run(
        group,
        lambda client, each: Fleeting(client, each)._expiring_messages("q"),
        with_arguments(QUEUE_DECLARE_OK, lambda name, _, consumers: (name, 1, consumers)),
    )


@fleeting("G3", "are still counted, long after their time")
def what_has_expired_is_counted(group: Scenario) -> None:
    answers = count(1)  # the first two come before anything has expired
    run(
        group,
        lambda client, each: Fleeting(client, each)._expiring_messages("q"),
        with_arguments(QUEUE_DECLARE_OK, lambda name, _, consumers: (name, int(next(answers) > 2), consumers)),
    )


@fleeting("naming", "is still there")
def a_queue_that_was_to_go_stays(group: Scenario) -> None:
    fill(group, "q")
    run(group, lambda client, each: Fleeting(client, each)._is_gone("q"))


@fleeting("G3", "after its purge")
def a_purged_queue_gives_a_message(group: Scenario) -> None:
    given = (1, BASIC_GET_OK, (1, False, "", "q", 0), b"", b"#1")
    run(group, lambda client, each: Fleeting(client, each)._purged("q"), instead(BASIC_GET_EMPTY, given))


@fleeting("routing", "is empty")
def an_exclusive_queue_gives_nothing(group: Scenario) -> None:
    empty = (1, BASIC_GET_EMPTY, ("",))
    run(group, lambda client, each: Fleeting(client, each)._exclusive("q"), instead(BASIC_GET_OK, empty))


# -- router ---------------------------------------------------------------------------------------------------------

router = partial(tampering, "workloads/router")


@router("routing", "was closed")
def who_routes_is_closed(group: Scenario) -> None:
    run(group, lambda client, each: Router(client, each).program(), instead(QUEUE_DECLARE_OK, CLOSED))


@router("routing", "returned {}, expected")
def what_comes_back_has_another_reason(group: Scenario) -> None:
    run(
        group,
        lambda client, each: Router(client, each).program(),
        with_arguments(BASIC_RETURN, lambda _, *rest: (0, *rest)),
    )


@router("routing", "with its header BCC")
def a_consumer_is_shown_who_else_got_it(group: Scenario) -> None:
    run(
        group,
        lambda client, each: Router(client, each).program(),
        (BASIC_GET_OK, lambda event: (*event[:3], encode_properties(headers={"BCC": ["a"]}), *event[4:])),
    )


@router("routing", "got {}, expected")
def what_was_routed_does_not_come(group: Scenario) -> None:
    run(group, lambda client, each: Router(client, each).program(), instead(BASIC_GET_OK, (1, BASIC_GET_EMPTY, ("",))))
