"""Demonstration: one run, from three empty folders to the report."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs

from understudy.client.demo.figures import Kill
from understudy.client.demo.killer import Killer
from understudy.client.demo.mover import Mover
from understudy.client.demo.read_back import read_accounts, read_digests
from understudy.client.demo.report import Run, make_report
from understudy.client.demo.view import View
from understudy.client.runs.audited import DETAIL, AuditError, audit_problems, audited, bring_up
from understudy.client.runs.broker_group import BrokerGroup, GroupError
from understudy.client.runs.coins import ACCOUNTS, COINS_PER_ACCOUNT, LARGEST_COIN
from understudy.client.runs.digests import READER, agree
from understudy.client.runs.session import LostError, RefusedError, Session, strays_logged
from understudy.client.runs.tally import Tally
from understudy.client.verdicts.differing import differing, miscounted
from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.evidence.client_log import ClientLog, read_logs
from understudy.client.verdicts.evidence.content import BrokerContent
from understudy.client.verdicts.evidence.history import History
from understudy.client.verdicts.judging import judge
from understudy.client.verdicts.violation import Violation

START_TIMEOUT_S: Final = 20.0
READY_TIMEOUT_S: Final = 20.0
DRAIN_TIMEOUT_S: Final = 20.0
SETTLE_TIMEOUT_S: Final = 10.0
SETTLE_PAUSE_S: Final = 1.0
OVERTIME_S: Final = 25.0
"""How much longer than asked for the load may go on, if kills are still owed."""


@attrs.frozen(kw_only=True)
class Wishes:
    """The options of a run of the demo.

    Attributes:
        rate: transactions a second, of all clients together.
        transactions: acknowledged ones, at the least.
        zookeeper: the ``--zookeeper`` of the cluster; "": a file.
        audit: whether the run ends with the audit of its feeds.
    """

    kills: int
    seconds: float
    clients: int
    rate: float
    transactions: int
    port: int
    zookeeper: str = ""
    audit: bool = False


class Demonstration:
    """One run.

    Args:
        folder: empty; afterwards it holds ``cluster/`` (each broker's log, configuration and data), ``clients/`` (their
            logs), ``kills.jsonl``, ``queues.json`` (as read back), ``digests.json`` and ``report.json``; with an audit also
            ``audit/``, its table of violations.
    """

    def __init__(self, wishes: Wishes, folder: Path, view: View) -> None:
        self._wishes = wishes
        self._folder = folder
        self._view = view
        self._random = Random()  # noqa: S311  # chance for a load, not for a secret
        self._tally = Tally()
        self._problems: list[str] = []
        self._kills: list[Kill] = []
        self._load_s = 0.0
        self._content = BrokerContent.of(READER, dict.fromkeys(ACCOUNTS, ()))
        self._brokers: list[BrokerContent] | None = None
        self._differences: list[Violation] = []
        self._audit_verdict: dict[str, Any] | None = None

    async def run(self) -> dict[str, Any]:
        """Returns the report.

        Raises:
            GroupError, LostError, RefusedError: the demo could not begin.
        """
        started_s = time.monotonic()
        (self._folder / "clients").mkdir(parents=True)
        with strays_logged(self._folder / "strays.log"):
            group = BrokerGroup(
                self._folder / "cluster",
                self._wishes.port,
                self._view.changed,
                zookeeper=self._wishes.zookeeper,
                feed=DETAIL if self._wishes.audit else "",
            )
            self._view.phase("three brokers start")
            async with group:
                await self._attend(group)
                self._view.phase("the brokers stop")
            group.sweep()
            self._problems += [
                f"{fault} ({times} times)" if times > 1 else fault for fault, times in group.unexpected.items()
            ]
            if group.exit_code:
                self._problems.append(f"the cluster ended with code {group.exit_code}")
            if self._wishes.audit:
                self._view.phase("the brokers' feeds are audited")
                await self._audit(group)
        return self._report(time.monotonic() - started_s)

    async def _attend(self, group: BrokerGroup) -> None:
        """Everything for which the brokers must run, under the eyes of the view."""
        failure: Exception | None = None
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._view.run(group, self._tally))
            try:
                await group.wait_until("three brokers are ready", lambda: group.all_ready, START_TIMEOUT_S)
                await self._mint(group)
                await self._load(group)
                await self._read_back(group)
            except (GroupError, LostError, RefusedError) as error:
                failure = error  # raised here it would come out as an ExceptionGroup
            finally:
                watching.cancel()
        if failure is not None:
            raise failure

    # -- the load -------------------------------------------------------------------------------------------------------

    def _client_log(self, client: str) -> ClientLog:
        return ClientLog(self._folder / "clients" / f"{client}.jsonl", client, self._tally.take)

    async def _mint(self, group: BrokerGroup) -> None:
        self._view.phase("the accounts are filled")
        amounts = {
            account: [self._random.randint(1, LARGEST_COIN) for _ in range(COINS_PER_ACCOUNT)] for account in ACCOUNTS
        }
        with self._client_log("mint") as log:
            mover = Mover(Session(group.addresses, "mint"), log, ACCOUNTS, self._random, pause_s=1.0, consumes=False)
            await mover.mint(amounts)

    async def _load(self, group: BrokerGroup) -> None:
        wishes = self._wishes
        self._view.phase(f"{wishes.clients} clients move money, and the primary will be killed {wishes.kills} times")
        began_s = time.monotonic()
        stop = asyncio.Event()
        with ExitStack() as logs:
            movers = [self._mover(number, group, logs) for number in range(wishes.clients)]
            try:
                async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
                    for mover in movers:
                        tasks.create_task(mover.run(stop))
                    await self._kill(group, began_s + wishes.seconds)
                    self._load_s = time.monotonic() - began_s
                    self._view.phase("the load ends")
                    stop.set()
                    limit.reschedule(asyncio.get_running_loop().time() + DRAIN_TIMEOUT_S)
            except TimeoutError:
                self._problems.append(f"clients were not done {DRAIN_TIMEOUT_S:g} s after the load; {group.describe()}")

    def _mover(self, number: int, group: BrokerGroup, logs: ExitStack) -> Mover:
        client = f"client-{number:02}"
        return Mover(
            Session(group.addresses, client, first=number),
            logs.enter_context(self._client_log(client)),
            ACCOUNTS,
            Random(self._random.getrandbits(64)),  # noqa: S311  # as above
            pause_s=self._wishes.clients / self._wishes.rate,
            consumes=number % 2 == 1,
        )

    async def _kill(self, group: BrokerGroup, end_s: float) -> None:
        """Kill and let work, until the time is over and the kills are done."""
        killer = Killer(group, self._tally, self._random, self._wishes.kills, self._note_kill)
        try:
            async with asyncio.timeout(end_s - time.monotonic() + OVERTIME_S):
                await killer.run(end_s)
        except TimeoutError:
            self._problems.append(f"the kills took more than {OVERTIME_S:g} s longer than the load was to last")
        except GroupError as error:
            self._problems.append(str(error))
        await asyncio.sleep(max(0.0, end_s - time.monotonic()))

    def _note_kill(self, kill: Kill) -> None:
        self._kills.append(kill)
        with (self._folder / "kills.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(attrs.asdict(kill)) + "\n")
        self._view.killed(kill)

    # -- the proof ------------------------------------------------------------------------------------------------------

    async def _read_back(self, group: BrokerGroup) -> None:
        self._view.phase("all brokers get ready, and every queue is read")
        try:
            await group.wait_until("all brokers are ready again", lambda: group.all_ready, READY_TIMEOUT_S)
        except GroupError as error:
            self._problems.append(str(error))
        until_s = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            self._content, self._brokers = BrokerContent.of(READER, dict.fromkeys(ACCOUNTS, ())), None
            self._differences, unread = [], ""
            try:
                self._content = await read_accounts(Session(group.addresses, "reader"), ACCOUNTS)
                self._brokers = brokers = await read_digests(group)
                self._differences = differing(brokers) + miscounted(self._content, brokers)
            except (GroupError, LostError, RefusedError) as error:
                unread = str(error)
            if not (unread or self._differences) or time.monotonic() > until_s:
                break
            await asyncio.sleep(SETTLE_PAUSE_S)  # messages in the hands of a client that was given up go back some time
        if unread:
            self._problems.append(unread)

    async def _audit(self, group: BrokerGroup) -> None:
        feeds = group.folder / "feed"
        try:
            for broker in group.views:
                await bring_up(group.folder / broker, feeds / broker)
            verdict = await audited(feeds, self._folder / "clients", self._folder / "audit", self._view.phase)
        except AuditError as error:
            self._problems.append(str(error))
            return
        self._audit_verdict = verdict
        self._problems += audit_problems(verdict)

    def _report(self, total_s: float) -> dict[str, Any]:
        case = Case(history=History.of(read_logs(self._folder / "clients")), content=self._content)
        run = Run(
            clients=self._wishes.clients,
            accounts=len(ACCOUNTS),
            load_s=self._load_s,
            total_s=total_s,
            kills=self._kills,
            kills_wanted=self._wishes.kills,
            transactions_wanted=self._wishes.transactions,
            digests_equal=agree(self._brokers) if self._brokers is not None else None,
            problems=self._problems,
        )
        report = make_report(run, case, [*judge(case), *self._differences])
        if self._audit_verdict is not None:
            report["audit"] = self._audit_verdict
        queues = {name: queue.messages for name, queue in self._content.queues.items()}
        digests = [attrs.asdict(broker) for broker in self._brokers or ()]
        for name, content in (("queues", queues), ("digests", digests), ("report", report)):
            (self._folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return report
