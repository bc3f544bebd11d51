"""Run: one stress run, from empty folders to the report."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

from understudy.client.runs.audited import AuditError, audit_problems, audited
from understudy.client.runs.broker_group import GroupError
from understudy.client.runs.session import LostError, RefusedError, strays_logged
from understudy.client.runs.tally import Tally
from understudy.client.stress.evidence import Evidence, gather, judged
from understudy.client.stress.faults.conductor import Conductor
from understudy.client.stress.faults.nemeses import Plan
from understudy.client.stress.faults.watch import Watch
from understudy.client.stress.libraries.by_name import LIBRARIES
from understudy.client.stress.libraries.connection import Session
from understudy.client.stress.places.local import FEED
from understudy.client.stress.places.place import Place, PlaceError
from understudy.client.stress.report.page import make_page
from understudy.client.stress.report.summary import Role, Run, make_report
from understudy.client.stress.report.view import View
from understudy.client.stress.wishes import Wishes
from understudy.client.stress.workloads.by_name import WORKLOADS, Cast
from understudy.client.stress.workloads.worker import Worker
from understudy.client.verdicts.evidence.client_log import ClientLog, Entry

START_S: Final = 60.0
DRAIN_S: Final = 60.0
JOIN_S: Final = 30.0


class Stress:
    """One run.

    Args:
        place: not entered yet.
        folder: for ``clients/`` (their logs), ``report.json``.
    """

    def __init__(self, wishes: Wishes, place: Place, folder: Path, view: View) -> None:
        self._wishes = wishes
        self._place = place
        self._folder = folder
        self._view = view
        self._workload = WORKLOADS[wishes.workload]
        self._random = Random(wishes.seed)  # noqa: S311  # chance for a load, not for a secret
        self._tally = Tally()
        self._lock = threading.Lock()
        self._problems: list[str] = []
        self._roles: list[Role] = []
        self._began_s = self._ended_s = 0.0
        self._evidence = Evidence(unread="the run did not get so far")

    async def run(self) -> dict[str, Any]:
        """Returns the report.

        Raises:
            GroupError, LostError, RefusedError, PlaceError: the run could not begin.
        """
        (self._folder / "clients").mkdir(parents=True)
        with strays_logged(self._folder / "strays.log"):
            return await self._carry_out()

    async def _carry_out(self) -> dict[str, Any]:
        self._view.phase("the brokers start")
        async with self._place as place:
            watch = Watch(place.http, place.login, self._view.changed)
            plan_random, strike_random = (Random(self._random.getrandbits(64)) for _ in range(2))  # noqa: S311  # as above
            conductor = Conductor(
                place, watch, self._tally, Plan(plan_random, self._wishes.nemeses), strike_random, self._view.struck
            )
            failure: Exception | None = None
            async with asyncio.TaskGroup() as tasks:
                watching = [tasks.create_task(watch.run()), tasks.create_task(self._view.run(watch, self._tally))]
                try:
                    await watch.wait_until("all brokers are ready", watch.all_ready, START_S)
                    await self._load(watch, conductor)
                    self._view.phase("every queue is read")
                    self._evidence = await gather(self._session(0, "reader"), self._workload, watch)
                except (GroupError, LostError, RefusedError, PlaceError) as error:
                    failure = error  # raised here it would come out as an ExceptionGroup
                finally:
                    for each in watching:
                        each.cancel()
            if failure is not None:
                raise failure
            self._view.phase("the brokers stop")
        self._problems += [f"{text} ({times} times)" if times > 1 else text for text, times in place.unexpected.items()]
        if self._evidence.unread:
            self._problems.append(self._evidence.unread)
        verdict = await self._audited() if self._wishes.audit else None
        self._view.phase("the clients' logs are judged")
        run = Run(
            setting=self._wishes.setting(),
            began_s=self._began_s,
            ended_s=self._ended_s,
            faults=conductor.faults,
            moments=watch.moments,
            problems=self._problems,
            equal=self._evidence.equal,
            roles=self._roles,
        )
        return await asyncio.to_thread(self._report, run, verdict)

    async def _audited(self) -> dict[str, Any] | None:
        """The result of the audit of the brokers' feeds; None if the audit failed."""
        self._view.phase("the brokers' feeds are audited")
        try:
            feeds, clients = self._folder / "cluster" / FEED, self._folder / "clients"
            verdict = await audited(feeds, clients, self._folder / "audit", self._view.phase)
        except AuditError as error:
            self._problems.append(str(error))
            return None
        self._problems += audit_problems(verdict)
        return verdict

    def _report(self, run: Run, verdict: dict[str, Any] | None) -> dict[str, Any]:
        case, violations = judged(self._folder / "clients", self._evidence, self._workload)
        report = make_report(run, case, violations)
        if self._workload.figures is not None:
            report["queues"] = self._workload.figures(case)
        if verdict is not None:
            report["audit"] = verdict
        (self._folder / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
        (self._folder / "report.html").write_text(make_page(report, run, case.history), encoding="utf-8")
        return report

    # -- the load -------------------------------------------------------------------------------------------------------

    def _session(self, number: int, name: str) -> Session:
        connect = LIBRARIES[self._wishes.library_of(number)]
        return Session(connect, list(self._place.amqp.values()), self._place.login, name, number)

    def _note(self, entry: Entry) -> None:
        with self._lock:
            self._tally.take(entry)

    async def _load(self, watch: Watch, conductor: Conductor) -> None:
        wishes = self._wishes
        with ExitStack() as logs:

            def log(name: str) -> ClientLog:
                with self._lock:
                    return logs.enter_context(ClientLog(self._folder / "clients" / f"{name}.jsonl", name, self._note))

            cast = Cast(
                clients=wishes.clients,
                random=Random(self._random.getrandbits(64)),  # noqa: S311  # as above
                session=self._session,
                log=log,
                pause_s=wishes.clients / wishes.rate,
            )
            self._view.phase("the queues are filled")
            await asyncio.to_thread(_fill, self._workload.fill(*cast.of(0, "fill")))
            workers = self._workload.workers(cast)
            self._roles = [
                Role(client=worker.log.client, library=wishes.library_of(number), proof=worker.proof)
                for number, worker in enumerate(workers)
            ]
            self._view.phase(f"{len(workers)} clients work, and faults come")
            self._began_s = time.monotonic()
            stop, give_up = threading.Event(), threading.Event()
            threads = [
                threading.Thread(target=worker.run, args=(stop, give_up), name=worker.log.client, daemon=True)
                for worker in workers
            ]
            for thread in threads:
                thread.start()
            try:
                await conductor.run(wishes.goal)
            except GroupError as error:
                self._problems.append(f"not live: {error}")
            except PlaceError as error:
                self._problems.append(f"a fault could not be carried out: {error}")
            finally:
                self._ended_s = time.monotonic()
                self._view.phase("the load ends")
                stop.set()
                await self._join(threads, workers, give_up)

    async def _join(
        self, threads: Sequence[threading.Thread], workers: Sequence[Worker], give_up: threading.Event
    ) -> None:
        if late := await asyncio.to_thread(_alive_after, threads, DRAIN_S):
            self._problems.append(f"clients were not done {DRAIN_S:g} s after the load: {', '.join(late)}")
            give_up.set()
            await asyncio.to_thread(_alive_after, threads, JOIN_S)
        self._problems += [f"client {worker.log.client} failed: {worker.fault!r}" for worker in workers if worker.fault]


def _fill(worker: Worker) -> None:
    connection = worker.session.open()
    try:
        worker.prepare(connection)
        worker.work(connection)
    finally:
        connection.close()


def _alive_after(threads: Sequence[threading.Thread], timeout_s: float) -> list[str]:
    """Wait for these threads; the names of those that have not ended in time."""
    until_s = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]
