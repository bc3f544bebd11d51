"""Distributed: branches of distributed transactions, by a client that is both their worker and their transaction manager.

What a manager knows it never forgets, so it may be this program: which branch it has begun, what it was told, what it has decided.
From ``prepare-ok`` on it drives its decision until it is answered, over any number of brokers. 404 is the answer "that was carried
out" if it has sent its decision before, and a broken promise if it has not. An operator completes a branch by hand now and then;
then the manager asks which way, and has it forgotten.
"""

from __future__ import annotations

from tests.simulator import calls
from tests.simulator.checkers.answers import Expected
from tests.simulator.ledger import ClientTransaction, Told, Violation, stamp_of
from tests.simulator.sim_client import Closed, Lost, Program, SimClient
from tests.simulator.workloads.bank import ACCOUNTS
from tests.simulator.workloads.run import PERSISTENT, TRANSIENT, Run, padded
from understudy.broker.transactions.xa_status import XaStatus
from understudy.broker.transactions.xid import Xid

VHOST = "/"
FAILS, SUSPENDS, ONE_PHASE, GIVES_UP, COMMITS = 0.05, 0.15, 0.15, 0.1, 0.8
"""How often a branch is ended with fail, is suspended for a while, is committed in one phase, is rolled back unprepared; and, if it
is prepared, is committed."""
THINKS_MS = (0, 0, 5, 50, 400, 3_000)
"""Between prepare-ok and the decision; one of these at most."""
COMPLETES = 0.15
"""How often the operator, who looks now and then, completes a branch that it sees."""
PREPARED = 0
EXTRAS = "branch-extras"
"""Gets messages that no journal keeps: they are compared on all brokers, and no client counts them."""
BRINGS_EXTRAS = 0.25


class Manager:
    """Moves messages between accounts, one branch after another."""

    def __init__(self, client: SimClient, run: Run) -> None:
        self.client = client
        self.run = run
        self.rng = client.rng
        self._selected = False
        self._number = 0

    def program(self) -> Program:
        while not self.run.enough():
            self._number += 1
            label = f"{self.client.name}-{self._number}"
            xid = Xid(1, label.encode(), bytes((self.rng.randrange(256),)))
            transaction = ClientTransaction(label=label, question="")
            yield from self._branch(transaction, xid)
            yield from self.client.pause(0, self.run.idle_ms(self.rng))

    def _branch(self, transaction: ClientTransaction, xid: Xid) -> Program:
        """One branch, from start to an outcome that is known."""
        client, rng, ledger = self.client, self.rng, self.run.ledger
        prepared = asked = False
        ledger.enter(transaction)
        try:
            yield from self._connected()
            client.expected = Expected(branch=(VHOST, xid))
            if not (yield from self._work(transaction, xid)):
                ledger.forget(transaction)
                yield from self._over(
                    calls.dtx_rollback(client, xid), XaStatus.OK, XaStatus.RBROLLBACK, XaStatus.RBTIMEOUT
                )
                yield from client.pause(0, 60)
                return
            if rng.random() < ONE_PHASE:
                yield from self._one_phase(transaction, xid)
                return
            if rng.random() >= GIVES_UP:
                asked = True
                status = yield from calls.dtx_prepare(client, xid)
                prepared = status == XaStatus.OK
        except (Lost, Closed) as end:
            self._gone(end)
        if asked and not prepared and rng.random() < 0.5:
            prepared = yield from self._is_in_doubt(xid)
        if prepared:
            yield from client.pause(0, rng.choice(THINKS_MS))
            if rng.random() < 0.3:
                self._gone(None)
        commits = prepared and rng.random() < COMMITS
        yield from self._decide(transaction, xid, commits, prepared)

    def _work(self, transaction: ClientTransaction, xid: Xid) -> Program:
        """Take a message or two, bring as many; whether there was one."""
        client, rng = self.client, self.rng
        yield from calls.dtx_start(client, xid)
        tags: list[int] = []
        for queue in rng.sample(ACCOUNTS, rng.randrange(1, 3)):
            event = yield from calls.get(client, queue)
            if event is not None:
                tags.append(event[2][0])
                transaction.consumed.append(stamp_of(event[4]))
        if rng.random() < SUSPENDS:
            yield from calls.dtx_end(client, xid, suspend=True)
            yield from client.pause(0, 20)
            if (yield from calls.dtx_start(client, xid, resume=True)) != XaStatus.OK:
                for tag in tags:  # its time is over: what is done now is done outside of any branch
                    calls.nack(client, tag)
                return False
        for i in range(len(tags)):
            stamp = f"#{transaction.label}/{i}"
            queue = rng.choice(ACCOUNTS)
            transaction.produced[stamp] = queue
            client.publish("", queue, PERSISTENT, padded(stamp, rng.randrange(30)))
            if rng.random() < 0.3:
                yield from client.pause(0, 3)
        for tag in tags:
            calls.ack(client, tag)
        if rng.random() < BRINGS_EXTRAS:
            client.publish("", EXTRAS, TRANSIENT, padded(f"#{transaction.label}/extra", 3))
        fails = rng.random() < FAILS
        if rng.random() < 0.05:
            yield from client.pause(0, 2_500)  # beyond its time-out, perhaps
        yield from calls.dtx_end(client, xid, fail=fails)
        return bool(tags)

    def _one_phase(self, transaction: ClientTransaction, xid: Xid) -> Program:
        """A commit without a prepare: its outcome is not known if the answer is lost, as that of any XA branch."""
        client = self.client
        client.expected.stamps = tuple(transaction.produced)
        try:
            status = yield from calls.dtx_commit(client, xid, one_phase=True)
        except (Lost, Closed) as end:
            self._gone(end)
            if isinstance(end, Closed) and not end.connection and end.code == 506:
                yield from self._decide(transaction, xid, commits=False, prepared=False)
                return
            yield from self._look(transaction, xid)
            return
        self.run.did("branches committed in one phase", status == XaStatus.OK)
        self.run.ledger.told(transaction, Told.COMMITTED if status == XaStatus.OK else Told.ROLLED_BACK)

    def _look(self, transaction: ClientTransaction, xid: Xid) -> Program:
        """The reference alone knows the outcome of a one-phase commit: the client's books take its word.

        First the branch is ended where it may still be, so that nothing comes of it later.
        """
        yield from self._drive(xid, commits=False)
        ever = self.client.overhearer.reference.ever  # type: ignore[attr-defined]  # the checkers of this run
        committed = bool(transaction.produced) and all(stamp in ever for stamp in transaction.produced)
        self.run.ledger.told(transaction, Told.COMMITTED if committed else Told.ROLLED_BACK)

    def _decide(self, transaction: ClientTransaction, xid: Xid, commits: bool, prepared: bool) -> Program:
        """Say commit or rollback until it is answered."""
        outcome, sent = yield from self._drive(xid, commits)
        if outcome is None:
            if prepared and sent == 1:
                raise Violation(
                    "G4", f"{self.client.name} was told that {xid} is prepared, and then that there is no such branch"
                )
            outcome = Told.COMMITTED if commits else Told.ROLLED_BACK
        elif prepared and commits and outcome is Told.OPEN:
            raise Violation(
                "G4", f"{self.client.name} was told that {xid} is prepared, and then that it was rolled back"
            )
        if prepared:
            self.run.did("branches committed" if outcome is Told.COMMITTED else "prepared branches rolled back")
        self.run.ledger.told(transaction, Told.ROLLED_BACK if outcome is Told.OPEN else outcome)

    def _drive(self, xid: Xid, commits: bool) -> Program:
        """(what the answer says: None for 404, OPEN for "rolled back by the broker"; how often it was asked)."""
        client = self.client
        sent = 0
        while True:
            try:
                yield from self._connected()
                client.expected = Expected(branch=(VHOST, xid))
                sent += 1
                verb = calls.dtx_commit if commits else calls.dtx_rollback
                status = yield from verb(client, xid)
            except (Lost, Closed) as end:
                self._gone(end)
                if isinstance(end, Closed) and not end.connection and end.code == 404:
                    return None, sent
                if isinstance(end, Closed) and end.code not in (320, 409, 506):
                    raise Violation("protocol", f"the decision on {xid} is answered {end}") from end
                yield from client.pause(5, 60)
                continue
            if status == XaStatus.OK:
                return (Told.COMMITTED if commits else Told.ROLLED_BACK), sent
            if status == XaStatus.HEURHAZ:
                return (yield from self._completed(xid)), sent
            return Told.OPEN, sent

    def _completed(self, xid: Xid) -> Program:
        """An operator was there: which way, and that it may be forgotten."""
        client = self.client
        way = None
        while True:
            try:
                yield from self._connected()
                client.expected = Expected()
                if way is None:
                    state = (yield from calls.dtx_recover(client)).get(xid)
                    if state is None or state == PREPARED:
                        raise Violation("G5", f"{xid} was completed by an operator, and is listed as {state}")
                    way = Told.COMMITTED if state == 1 else Told.ROLLED_BACK
                yield from calls.dtx_forget(client, xid)
            except (Lost, Closed) as end:
                self._gone(end)
                if isinstance(end, Closed) and not end.connection and end.code == 404:
                    return way
                yield from client.pause(5, 60)
                continue
            return way

    def _is_in_doubt(self, xid: Xid) -> Program:
        """True if a broker lists the branch as prepared; it might not do so yet."""
        client = self.client
        while True:
            try:
                yield from self._connected()
                found = yield from calls.dtx_recover(client)
            except (Lost, Closed) as end:
                self._gone(end)
                yield from client.pause(5, 60)
                continue
            return found.get(xid) == PREPARED

    def _over(self, ask: Program, *good: XaStatus) -> Program:
        status = yield from ask
        if status not in good:
            raise Violation("protocol", f"{self.client.name} is answered {status}")

    def _connected(self) -> Program:
        client = self.client
        if not (self._selected and client.connected()):
            self._selected = False
            yield from client.connect()
            yield from calls.declare(client, EXTRAS)
            yield from calls.dtx_select(client)
            self._selected = True

    def _gone(self, end: Lost | Closed | None) -> None:
        """The connection is over, or this program lets it go."""
        self._selected = False
        self.client.disconnect("again" if end is not None else "the manager goes elsewhere")


class Operator:
    """Looks at what is in doubt from time to time, and completes one of them by hand, rarely."""

    def __init__(self, client: SimClient, run: Run) -> None:
        self.client = client
        self.run = run

    def program(self) -> Program:
        client, rng = self.client, self.client.rng
        while not self.run.over:
            try:
                if not client.connected():
                    yield from client.connect()
                yield from client.pause(50, 1_500)
                found = yield from calls.dtx_recover(client)
                prepared = sorted(xid for xid, state in found.items() if state == PREPARED)
                if prepared and rng.random() < COMPLETES and not self.run.enough():
                    yield from calls.dtx_complete(client, rng.choice(prepared), commit=rng.random() < 0.5)
                    self.run.did("branches completed by hand")
            except (Lost, Closed):
                client.disconnect("again")
