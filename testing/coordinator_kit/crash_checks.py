"""Checks of crashes: at any step of a run, and within any operation of its disk. The next life finds all or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Final

from understudy.broker.log.journal import JournalFailedError
from understudy.broker.log.storage import StorageFullError
from understudy.testing.coordinator_kit.check import Whose, check, require
from understudy.testing.coordinator_kit.kit_client import Answer
from understudy.testing.coordinator_kit.kit_run import KitRun
from understudy.testing.coordinator_kit.order_checks import require_order
from understudy.testing.coordinator_kit.subject import Subject
from understudy.testing.coordinator_kit.watch import Kind
from understudy.testing.coordinator_kit.workload import QUEUES, Workload
from understudy.testing.disk import PowerCutError

COMMITTERS: Final = 4
EACH: Final = 3
RECOVERY_OPERATIONS: Final = 6


def _workload(run: KitRun, seed: int) -> Workload:
    return Workload(run.broker, seed, COMMITTERS, EACH)


def _length(subject: Subject, seed: int) -> tuple[int, int]:
    """(steps, operations of the disk) of a run in which nothing fails."""
    run = KitRun(subject)
    storage = run.broker.storage
    before = storage.operations
    workload = _workload(run, seed)
    workload.run()
    return workload.steps, storage.operations - before


@check("C-16", "C-17", "C-24", "C-26", whose=Whose.ALL)
def a_crash_at_any_step_leaves_all_or_nothing(subject: Subject) -> None:
    """The process or the machine dies between any two steps: what is decided is kept, what is not is rolled back."""
    for seed in range(subject.crash_seeds):
        steps, _ = _length(subject, seed)
        for step in range(steps + 1):
            run = KitRun(subject)
            _workload(run, seed).run(step)
            rng = Random(step)
            run.broker.crash(rng, hard=rng.random() < 0.5)
            _judge(run, rng, f"a crash after step {step} of seed {seed}")


@check("C-16", "C-17", "C-24", "C-26", whose=Whose.ALL)
def a_power_cut_in_any_write_leaves_all_or_nothing(subject: Subject) -> None:
    """The power fails within any operation of the disk, and perhaps in the recovery again."""
    for seed in range(subject.crash_seeds):
        _, operations = _length(subject, seed)
        for operation in range(operations):
            run = KitRun(subject)
            run.broker.storage.cut_power_after(operation)
            with suppress(PowerCutError):
                _workload(run, seed).run()
            rng = Random(operation)
            run.broker.crash(rng, hard=True)
            _judge(run, rng, f"a power cut in operation {operation} of seed {seed}")


@check("C-34", whose=Whose.ALL)
def a_failed_write_loses_no_answer(subject: Subject) -> None:
    """A sync fails, or the disk is full: nobody of the group is told, and the next life finds all or nothing."""
    for run, rng, when in _failing_runs(subject):
        told = {tx.name for tx in run.broker.transactions if tx.answer is Answer.COMMITTED}
        run.broker.crash(rng, hard=True)
        run.broker.storage.heal()
        after = {tx.name for tx in run.broker.transactions if tx.answer is Answer.COMMITTED}
        require(after == told, "C-34", f"{sorted(after - told)} were told after {when}")
        _judge(run, rng, when, "C-34")


def _failing_runs(subject: Subject) -> Iterator[tuple[KitRun, Random, str]]:
    for seed in range(subject.crash_seeds):
        steps, _ = _length(subject, seed)
        for step in range(0, steps, 2):
            run = KitRun(subject)
            workload = _workload(run, seed)
            workload.run(step)
            full = step % 4 == 0
            if full:
                run.broker.storage.fill_up()
            else:
                run.broker.storage.fail_syncs(1)
            with suppress(OSError, StorageFullError, JournalFailedError):
                workload.run()
            what = "the disk was full" if full else "a sync failed"
            yield run, Random(step), f"{what} from step {step} of seed {seed} on"


def _judge(run: KitRun, rng: Random, when: str, requirement: str = "") -> None:
    """Start the broker again, perhaps with a second power cut, and look at what it has."""
    broker = run.broker
    decided = broker.facts().decided
    told = [tx.name for tx in broker.transactions if tx.answer is Answer.COMMITTED]
    lost = [name for name in told if name not in decided]
    require(not lost, requirement or "C-17", f"{lost} were told committed, and the log does not have them after {when}")
    if rng.random() < 0.5:
        broker.storage.cut_power_after(rng.randrange(RECOVERY_OPERATIONS))
        with suppress(PowerCutError):
            broker.start()
        broker.crash(rng, hard=True)
    broker.start()
    _require_content(run, decided, requirement or "C-26", when)
    _go_on(run, when)
    broker.crash(rng, hard=False)
    decided = broker.facts().decided
    broker.start()
    _require_content(run, decided, requirement or "C-24", f"a second restart, after {when}")


def _require_content(run: KitRun, decided: list[str], requirement: str, when: str) -> None:
    """Each queue holds the messages of what is decided, whole and in the order of the log, and nothing else."""
    bodies = {tx.name: tx.bodies for tx in run.broker.transactions}
    for queue in QUEUES:
        wanted = [body.decode() for name in decided for body in bodies[name].get(queue, ())]
        found = [body.decode() for body in run.broker.queue(queue)]
        require_order(found, wanted, requirement, f"queue {queue} after {when}")


def _go_on(run: KitRun, when: str) -> None:
    """The new life takes commits, and its coordinator remembers nothing of the old one."""
    seen = len(run.watch.seen)
    begun = run.commit(dict.fromkeys(QUEUES, 1), count=2)
    waiting = run.settle()
    require(not waiting, "C-26", f"{waiting} have no answer in the life after {when}")
    bad = [each.text for each in run.watch.seen[seen:] if each.kind in (Kind.MISTAKE, Kind.RAISED)]
    require(not bad, "C-26", f"the coordinator of the life after {when}: {bad[:1]}")
    require(all(tx.answer is not Answer.NONE for tx in begun), "C-26", f"{begun} after {when}")
