"""CpuBinding: processes move when another broker leads, and only those whose CPUs change."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from understudy.broker.server.process.cpu_binding import (
    FULL_RATIO,
    ROOM_RATIO,
    STAY_S,
    CpuBinding,
    bind_children,
    bind_process,
    idle_seconds,
    usable_cpus,
)

BROKERS = ("b1", "b2", "b3")
PIDS = {"b1": 11, "b2": 12, "b3": 13}


def plan(leader: str | None, full: bool) -> Mapping[str, Collection[int]]:
    """The leader runs on CPU 0, the others run on CPU 1. While CPU 0 has room b3 is there too; without a leader all run on both."""
    if leader is None:
        return {broker: {0, 1} for broker in BROKERS}
    return {broker: {0} if broker == leader or (broker == "b3" and not full) else {1} for broker in BROKERS}


class Bound:
    """Binding that records its calls since the last look."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Collection[int]]] = []
        self.idle = {0: 7.0, 1: 3.0}
        self.now_s = 100.0
        self.beside: dict[int, Collection[int]] = {}
        self.binding = CpuBinding(
            plan,
            lambda pid, cpus: self.calls.append((pid, cpus)),
            lambda: dict(self.idle),
            self.beside.__setitem__,
            cpus=(0, 1, 2),
        )

    def new(self) -> list[tuple[int, Collection[int]]]:
        calls, self.calls = self.calls, []
        return calls

    def started(self) -> Bound:
        for broker, pid in PIDS.items():
            self.binding.started(broker, pid)
        self.binding.told("b1", {"role": "primary", "epoch": 1})
        self.binding.look(self.now_s)
        self.new()
        return self

    def idled(self, *ratios: float) -> list[tuple[int, Collection[int]]]:
        """Six seconds pass, in which CPUs 0 and 1 are idle for so much of the time."""
        self.now_s += 6
        for cpu, ratio in enumerate(ratios):
            self.idle[cpu] += 6 * ratio
        self.binding.look(self.now_s)
        return self.new()

    def primary(self, broker: str, epoch: int) -> list[tuple[int, Collection[int]]]:
        self.binding.told(broker, {"role": "primary", "epoch": epoch})
        return self.new()


def test_brokers_start_anywhere_and_are_bound_when_one_leads() -> None:
    bound = Bound()
    for broker, pid in PIDS.items():
        bound.binding.started(broker, pid)
    assert bound.new() == [(11, {0, 1}), (12, {0, 1}), (13, {0, 1})]
    bound.binding.told("b2", {"role": "backup", "epoch": 0})
    assert bound.new() == []
    assert bound.primary("b1", 1) == [(11, {0}), (12, {1}), (13, {0})]
    assert bound.primary("b1", 1) == [], "said once more"


def test_the_primary_ends_and_another_leads() -> None:
    bound = Bound().started()
    bound.binding.ended("b1")
    assert bound.new() == [(12, {0, 1}), (13, {0, 1})], "whoever is promoted shares no CPU meanwhile"
    bound.binding.started("b1", 21)
    assert bound.new() == [(21, {0, 1})]
    assert bound.primary("b3", 2) == [(21, {1}), (12, {1}), (13, {0})]
    bound.binding.ended("b2")
    assert bound.new() == [], "a backup that ends moves nobody"
    bound.binding.started("b2", 22)
    assert bound.new() == [(22, {1})]


def test_a_primary_that_hangs_is_replaced_and_does_not_come_back() -> None:
    bound = Bound().started()
    assert bound.primary("b2", 2) == [(11, {1}), (12, {0})]
    assert bound.primary("b1", 1) == [], "it does not know yet"
    bound.binding.told("b1", {"role": "backup", "epoch": 2})
    assert bound.new() == []
    assert bound.binding.leader == "b2"


def test_a_primary_steps_down() -> None:
    bound = Bound().started()
    bound.binding.told("b1", {"role": None, "status": "starting", "epoch": 0})
    assert bound.new() == [(11, {0, 1}), (12, {0, 1}), (13, {0, 1})]


def test_a_backup_leaves_the_cpu_of_the_primary_when_that_is_full() -> None:
    bound = Bound().started()
    assert bound.idled(FULL_RATIO + 0.01, 0.0) == [], "CPU 1 is another matter"
    assert bound.idled(FULL_RATIO - 0.01, 1.0) == [(13, {1})]
    assert bound.idled(ROOM_RATIO - 0.01, 0.0) == [], "what is full stays so for a while"
    assert bound.idled(ROOM_RATIO + 0.01, 0.0) == [(13, {0})]
    assert bound.idled(0.0, 0.0) == [(13, {1})]
    assert bound.primary("b2", 2) == [(11, {1}), (12, {0}), (13, {0})], "nothing is known of the load of a new leader"


def test_what_runs_beside_brokers_leaves_a_full_cpu_to_the_leader() -> None:
    bound = Bound().started()
    assert bound.beside == {11: {0, 1, 2}, 12: {0, 1, 2}, 13: {0, 1, 2}}
    bound.idled(0.0, 0.0)
    bound.idled(0.0, 0.0)
    assert bound.beside == {11: {1, 2}, 12: {1, 2}, 13: {1, 2}}
    bound.binding.ended("b1")
    bound.beside.clear()
    bound.idled(0.0, 0.0)
    assert bound.beside == {12: {0, 1, 2}, 13: {0, 1, 2}}


def test_a_child_that_was_bound_with_its_parent_is_let_go() -> None:
    before = os.sched_getaffinity(0)
    bind_process(os.getpid(), {max(before)})
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert os.sched_getaffinity(child.pid) == {max(before)}
        bind_children(os.getpid(), before)
        assert os.sched_getaffinity(child.pid) == before
        assert os.sched_getaffinity(0) == {max(before)}
    finally:
        bind_process(os.getpid(), before)
        child.kill()
        child.wait()


def test_it_counts_as_full_where_nobody_tells() -> None:
    bound = Bound().started()
    bound.idle.clear()
    assert bound.idled() == [(13, {1})]
    bound.idle[0] = 9.0
    assert bound.idled(1.0) == [], "there is nothing yet to compare it with"
    assert bound.idled(1.0) == [(13, {0})]


def test_it_stays_full_for_a_while() -> None:
    bound = Bound().started()
    assert bound.idled(0.0) == [(13, {1})]
    bound.now_s -= 6 - STAY_S / 2
    assert bound.idled(1.0) == []
    assert bound.idled(1.0) == [(13, {0})]


def test_each_cpu_that_may_be_used_has_an_idle_time() -> None:
    assert set(usable_cpus()) <= set(idle_seconds())


def test_all_threads_of_a_process_are_bound_and_those_that_come() -> None:
    before = os.sched_getaffinity(0)
    wanted = {max(before)}
    go, done = threading.Event(), threading.Event()
    found: list[set[int]] = []

    def work() -> None:
        go.wait(30)
        child = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
        child.start()
        child.join(30)
        found.append(os.sched_getaffinity(0))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        bind_process(os.getpid(), wanted)
        tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        assert len(tasks) > 1
        assert all(os.sched_getaffinity(task) == wanted for task in tasks)
        assert usable_cpus() == sorted(wanted)
        go.set()
        assert done.wait(30)
        assert found == [wanted, wanted]
    finally:
        go.set()
        thread.join(30)
        bind_process(os.getpid(), before)


def test_a_process_that_has_ended_is_no_error() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    bind_process(pid, os.sched_getaffinity(0))


def test_a_cpu_that_is_not_there_is_no_error() -> None:
    before = os.sched_getaffinity(0)
    bind_process(os.getpid(), {1023})
    assert os.sched_getaffinity(0) == before
