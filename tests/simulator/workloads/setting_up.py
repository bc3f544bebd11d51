"""Which clients a run has, and the queues that are there before they begin."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator import calls
from tests.simulator.knobs import Knobs
from tests.simulator.sim_client import Closed, Lost, Program, SimClient
from tests.simulator.workloads import mortal, ranked, repeater, retried
from tests.simulator.workloads.bank import ACCOUNTS, Bank
from tests.simulator.workloads.changeling import Changeling
from tests.simulator.workloads.distributed import Manager, Operator
from tests.simulator.workloads.fan import Fan
from tests.simulator.workloads.fleeting import Fleeting
from tests.simulator.workloads.inquirer import Inquirer
from tests.simulator.workloads.levels import Levels
from tests.simulator.workloads.mixed import MIXED, Mixer
from tests.simulator.workloads.odd_transactions import HEAVY, Heavy, Shy, Sleeper, Thinker
from tests.simulator.workloads.plain import FIFO, PICKED, Consumer, PickyConsumer, Producer
from tests.simulator.workloads.replacer import Replacer
from tests.simulator.workloads.ring import RING, Runner
from tests.simulator.workloads.router import Router
from tests.simulator.workloads.run import Run
from tests.simulator.workloads.stages import STAGES, Feeder, StageWorker
from tests.simulator.workloads.vandal import Vandal
from tests.simulator.workloads.wild import Wild

KEPT_QUEUES = (*ACCOUNTS, *STAGES, HEAVY, FIFO, PICKED)
"""Durable queues that are neither deleted nor purged, declared for every run: see :func:`kept_queues`."""
MAKE_CLIENT = Callable[[str], SimClient]
PROGRAM = Callable[[SimClient], Program]


def kept_queues(knobs: Knobs) -> tuple[str, ...]:
    """Those, and what the workloads that came later have of the kind."""
    chosen = knobs.workloads
    return (*KEPT_QUEUES, *(RING if "ring" in chosen else ()), *((MIXED,) if "mixed" in chosen else ()))


def declare_all(client: SimClient, knobs: Knobs) -> Program:
    """Declare the kept queues, over as many connections as it takes."""
    left = list(kept_queues(knobs))
    while left:
        try:
            yield from client.connect()
            while left:
                yield from calls.declare(client, left[0])
                left.pop(0)
        except (Lost, Closed):
            client.disconnect("again")


def workers(run: Run, make: MAKE_CLIENT) -> tuple[list[SimClient], list[SimClient]]:
    """Start the clients. Returns those that end by themselves when there is enough, and those that end when all is over."""
    chosen = run.knobs.workloads
    programs: dict[str, Callable[[SimClient], Program]] = {
        f"teller{i}": lambda client, first=i == 0: Bank(client, run, 8 if first else 4).program()  # type: ignore[misc]
        for i in range(run.knobs.tellers)
    }
    watchers: dict[str, Callable[[SimClient], Program]] = {}
    if "stages" in chosen:
        programs["feeder"] = lambda client: Feeder(client, run).program()
        for stage in range(len(STAGES) - 1):
            programs[f"worker{stage}"] = lambda client, stage=stage: StageWorker(client, run, stage).program()  # type: ignore[misc]
    if "ring" in chosen:
        known: dict[str, int] = {}
        for i in range(2):
            programs[f"runner{i}"] = lambda client, first=i == 0: Runner(client, run, known, first).program()  # type: ignore[misc]
    if "mixed" in chosen:
        programs["mixer"] = lambda client: Mixer(client, run).program()
        programs["mixed-producer"] = lambda client: Producer(client, run, MIXED).program()
        watchers["mixed-consumer"] = lambda client: PickyConsumer(client, run, MIXED).program()
    if "changeling" in chosen:
        for i in range(2):
            programs[f"changeling{i}"] = lambda client: Changeling(client, run).program()
    if "fifo" in chosen:
        programs["producer"] = lambda client: Producer(client, run, FIFO, persistent=0.9).program()
        watchers["consumer"] = lambda client: Consumer(client, run, FIFO).program()
    if "picky" in chosen:
        programs["supplier"] = lambda client: Producer(client, run, PICKED).program()
        watchers["picker"] = lambda client: PickyConsumer(client, run, PICKED).program()
    if "wild" in chosen:
        names: list[str] = []
        for i in range(3):
            programs[f"wild{i}"] = lambda client: Wild(client, run, names).program()
    singles: dict[str, Callable[[SimClient], Program]] = {
        "router": lambda client: Router(client, run).program(),
        "fleeting": lambda client: Fleeting(client, run).program(),
        "inquirer": lambda client: Inquirer(client, run).program(),
        "vandal": lambda client: Vandal(client, run).program(),
        "sleeper": lambda client: Sleeper(client, run).program(),
        "heavy": lambda client: Heavy(client, run).program(),
        "shy": lambda client: Shy(client, run).program(),
        "fan": lambda client: Fan(client, run).program(),
        "thinker": lambda client: Thinker(client, run).program(),
        "levels": lambda client: Levels(client, run).program(),
        "replacer": lambda client: Replacer(client, run).program(),
    }
    programs.update({name: program for name, program in singles.items() if name in chosen})
    _distribute(run, programs, watchers)
    _let_die(run, programs, watchers)
    _rank(run, programs, watchers)
    _let_fail(run, programs, watchers)
    _repeat(run, programs, watchers)
    return _start(programs, make), _start(watchers, make)


def _distribute(run: Run, programs: dict[str, PROGRAM], watchers: dict[str, PROGRAM]) -> None:
    """Managers of distributed transactions, if the seed has them."""
    if "distributed" in run.knobs.workloads:
        for i in range(2):
            programs[f"manager{i}"] = lambda client: Manager(client, run).program()
        watchers["operator"] = lambda client: Operator(client, run).program()


def _let_die(run: Run, programs: dict[str, PROGRAM], watchers: dict[str, PROGRAM]) -> None:
    """Publishers of messages that move from queue to queue, and who rejects them, if the seed has them."""
    if "mortal" in run.knobs.workloads:
        for i, queue in enumerate((mortal.WORK, mortal.WORK, mortal.FULL)):
            programs[f"mortal{i}"] = lambda client, queue=queue: Producer(  # type: ignore[misc]
                client, run, queue, expiring=0.3, declares=mortal.QUEUES
            ).program()
        watchers["mourner"] = lambda client: mortal.MortalConsumer(client, run).program()


def _rank(run: Run, programs: dict[str, PROGRAM], watchers: dict[str, PROGRAM]) -> None:
    """Publishers of messages with priorities, and consumers that are not all alike, if the seed has them."""
    if "ranked" not in run.knobs.workloads:
        return
    for i, queue in enumerate(ranked.QUEUES):
        programs[f"ranked{i}"] = lambda client, queue=queue: ranked.RankedProducer(  # type: ignore[misc]
            client, run, queue, declares=ranked.QUEUES
        ).program()
        for each in range(3):
            watchers[f"ranker{i}{each}"] = lambda client, queue=queue: ranked.RankedConsumer(  # type: ignore[misc]
                client, run, queue
            ).program()


def _let_fail(run: Run, programs: dict[str, PROGRAM], watchers: dict[str, PROGRAM]) -> None:
    """Publishers of messages that fail, and who makes them fail, if the seed has them."""
    if "retried" in run.knobs.workloads:
        for i, queue in enumerate((retried.WORK, retried.COUNTED)):
            programs[f"retried{i}"] = lambda client, queue=queue: retried.LateProducer(  # type: ignore[misc]
                client, run, queue, declares=retried.QUEUES
            ).program()
        watchers["retrier"] = lambda client: retried.RetryingConsumer(client, run).program()


def _repeat(run: Run, programs: dict[str, PROGRAM], watchers: dict[str, PROGRAM]) -> None:
    """Publishers of messages that come once, however often they are published, if the seed has them."""
    if "repeater" in run.knobs.workloads:
        known: repeater.Known = []
        for i in range(2):
            programs[f"repeater{i}"] = lambda client: repeater.Repeater(client, run, known).program()
            programs[f"repeated{i}"] = lambda client: repeater.RepeatedTransactions(client, run, known).program()
        watchers["taker"] = lambda client: repeater.Taker(client, run).program()


def _start(programs: dict[str, Callable[[SimClient], Program]], make: MAKE_CLIENT) -> list[SimClient]:
    clients = []
    for i, (name, program) in enumerate(programs.items()):
        client = make(name)
        client.run(program(client), i * 1_000)
        clients.append(client)
    return clients
