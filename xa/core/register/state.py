"""StateCore: what the state server decides. It records and orders, and never calls a resource manager.

A connection owns the transactions that it has begun or claimed; others may work on one, too (`programs`). When the connection ends,
each waits for recovery; after a restart of the server all do. A transaction to recover is given to one connection of the same job
and the same profile. While one waits, its job begins no new transaction: so recovery starts before new work.

Every request yields one `Reaction`. The reply may be sent when the records up to and including the reaction's are durable; with
`at_once` it may be sent before.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from understudy.xa.core.register.attempts import Paused
from understudy.xa.core.register.bounds import (
    MAX_REASON,
    wrong_begin,
    wrong_codes,
    wrong_hello,
    wrong_prepared,
    wrong_profile,
    wrong_version,
)
from understudy.xa.core.register.entry import (
    Attempted,
    Begun,
    Decided,
    Ended,
    Entry,
    Image,
    Met,
    Record,
    Ruled,
    Settled,
    StartedBy,
    apply,
    is_complete,
    why_undecidable,
)
from understudy.xa.core.register.joining import joined
from understudy.xa.core.register.pending import PendingTable
from understudy.xa.core.register.programs import Programs
from understudy.xa.core.register.rulings import ruling
from understudy.xa.core.register.wire import (
    Begin,
    Claim,
    Claimed,
    Decide,
    Done,
    Failed,
    Forget,
    Hello,
    Heuristic,
    Join,
    List,
    Listing,
    Nothing,
    Ok,
    ProgramRequest,
    Refused,
    Release,
    Reply,
    Request,
    Rule,
    Settle,
    Shown,
    Started,
    Take,
    Watch,
    first_page,
)
from understudy.xa.core.xid import PROGRAM_MARK

MAX_ATTEMPTS: Final = 10
"""Recoveries that a resource manager has refused, after which a transaction is parked."""
_OK: Final = Ok()


@attrs.frozen
class Reaction:
    """The effects of a request.

    Attributes:
        shard: whose status file takes the record, and for whose earlier records the reply waits.
        record: to append; None if nothing changes.
        at_once: the reply need not wait for the disk.
    """

    reply: Reply
    shard: int
    record: Record | None = None
    at_once: bool = False


@attrs.define
class _Client:
    """A connection that has said hello.

    Attributes:
        listed: job and sorted global ids of the list that it has begun last.
        gave_way: what it has claimed and released: it is given others first.
    """

    hello: Hello
    shard: int
    listed: tuple[str, list[str]] | None = None
    gave_way: set[str] = attrs.field(factory=set)


class StateCore:
    """All shards of one server.

    Args:
        images: the entries of each shard, as its status file has them.
        max_attempts: see `MAX_ATTEMPTS`.
        first: number of the first of these shards, as people and other processes know it.

    Attributes:
        pending: what waits for recovery, by the numbers of shards that begin at 0.
        paused: what waits for a later recovery, since one has failed; see `attempts`.
    """

    def __init__(self, images: Sequence[Mapping[str, Entry]], max_attempts: int = MAX_ATTEMPTS, first: int = 0) -> None:
        self._shards: list[dict[str, Entry]] = [dict(image) for image in images]
        self._max_attempts = max_attempts
        self.pending = PendingTable()
        self.paused = Paused()
        self.first = first
        self._owners: dict[str, int] = {}
        self._shard_of: dict[str, int] = {}
        self._clients: dict[int, _Client] = {}
        self._programs = Programs()
        for number, entries in enumerate(self._shards):
            for entry in entries.values():
                self._shard_of[entry.gid] = number
                self._wait_for_recovery(entry)

    def image(self, shard: int) -> list[Entry]:
        """All entries of a shard."""
        return list(self._shards[shard].values())

    # -- connections --------------------------------------------------------------------------------------------------

    def left(self, connection: int) -> None:
        """A connection has ended: what it owned waits for recovery, and so does what it did as a joined program."""
        self._clients.pop(connection, None)
        for gid in (owned := [gid for gid, owner in self._owners.items() if owner == connection]):
            self._let_go(gid)
        for gid in dict.fromkeys([*owned, *self._programs.left(connection)]):
            self._wait_for_recovery(self._entry(gid))

    def received(self, connection: int, request: Request, now_ms: int) -> Reaction:
        """Decide on one request.

        Args:
            connection: a number that is not used twice.
            request: what it says.
            now_ms: wall clock.
        """
        if isinstance(request, Hello):
            return self._hello(connection, request)
        client = self._clients.get(connection)
        if client is None:
            return _refused(0, "protocol", "the first request of a connection is hello")
        self.tick(now_ms)
        match request:
            case Begin():
                reaction = self._begin(connection, client, request, now_ms)
            case Claim(early):
                reaction = self._claim(connection, client, early=early)
            case Take(gid):
                reaction = self._take(connection, client, gid)
            case List():
                reaction = self._list(client, request, now_ms)
            case Forget(gid):
                reaction = self._forget(client, gid)
            case Rule():
                reaction = self._rule(client, request, now_ms)
            case Watch():
                reaction = _refused(client.shard, "protocol", "watch is the first request of a connection")
            case _:
                reaction = self._of_transaction(connection, client, request, request.gid)
        if reaction.record is not None:
            if isinstance(request, Failed) and isinstance(failed := reaction.record, Attempted) and not failed.parked:
                self.paused.add(failed.gid, failed.attempts, now_ms)
            self._apply(reaction.shard, reaction.record)
        return reaction

    def tick(self, now_ms: int) -> None:
        """Time passes: a recovery that has failed is due again."""
        for gid in self.paused.due(now_ms):
            self._wait_for_recovery(self._entry(gid))

    def _hello(self, connection: int, hello: Hello) -> Reaction:
        if wrong := wrong_version(hello):
            return _refused(0, "version", wrong)
        if connection in self._clients:
            return _refused(0, "protocol", "hello was said before")
        if wrong := wrong_hello(hello):
            return _refused(0, "protocol", wrong)
        loads = [0] * len(self._shards)
        for client in self._clients.values():
            loads[client.shard] += 1
        shard = loads.index(min(loads))
        self._clients[connection] = _Client(hello, shard)
        if (other := self._of_other_profile(hello)) is not None:
            return _refused(shard, "wrong_profile", wrong_profile(other, hello))
        return Reaction(_OK, shard)

    def _of_other_profile(self, hello: Hello) -> Entry | None:
        """The first entry that waits for the job and was begun with other resource managers."""
        for number in range(len(self._shards)):
            gid = self.pending.peek(hello.job, number)
            if gid is not None and self._entry(gid).fingerprint != hello.fingerprint:
                return self._entry(gid)
        return None

    # -- recovery -----------------------------------------------------------------------------------------------------

    def _claim(self, connection: int, client: _Client, *, early: bool) -> Reaction:
        """Own shard first, all of it; then the first other shard, to which the connection moves."""
        job = client.hello.job
        gid = self.pending.next(job, client.shard, client.gave_way)
        if gid is None and client.gave_way:
            client.gave_way.clear()
            gid = self.pending.next(job, client.shard, client.gave_way)
        if gid is None and early and (gid := self._next_paused(job)) is not None:
            self.paused.discard(gid)
            self._wait_for_recovery(self._entry(gid))
        if gid is None:
            return Reaction(Nothing(), client.shard)
        client.shard = self._shard_of[gid]
        entry = self._entry(gid)
        if entry.fingerprint != client.hello.fingerprint:
            return _refused(client.shard, "wrong_profile", wrong_profile(entry, client.hello))
        self.pending.remove(job, client.shard, gid)
        self._owners[gid] = connection
        return Reaction(Claimed(self._programs.view(entry)), client.shard)

    def _next_paused(self, job: str) -> str | None:
        """Of the transactions of a job that are not due, the one that is due next."""
        return next((gid for gid in self.paused if self._entry(gid).job == job), None)

    def _take(self, connection: int, client: _Client, gid: str) -> Reaction:
        shard = self._shard_of.get(gid)
        if shard is None:
            return _refused(client.shard, "unknown", f"transaction {gid} is not known")
        entry = self._entry(gid)
        if entry.job != client.hello.job or entry.fingerprint != client.hello.fingerprint:
            return _refused(shard, "wrong_profile", wrong_profile(entry, client.hello))
        if gid in self._owners or not self._programs.is_left(entry):
            return _refused(shard, "not_owner", f"transaction {gid} is in use by a connected program")
        if entry.ruled:
            return _refused(shard, "protocol", f"transaction {gid} is none: branches that an operator has completed")
        if is_complete(entry):
            return _refused(shard, "protocol", f"transaction {gid} is complete, heuristically: see it, then forget it")
        self.paused.discard(gid)
        if self.pending.holds(entry.job, shard, gid):
            self.pending.remove(entry.job, shard, gid)
        self._owners[gid] = connection
        return Reaction(Claimed(self._programs.view(entry)), shard)

    def _wait_for_recovery(self, entry: Entry) -> None:
        """Put an entry into the pending table if no client has it and a branch of it can be completed; again is harmless."""
        shard = self._shard_of[entry.gid]
        if entry.parked or is_complete(entry) or entry.gid in self._owners or not self._programs.is_left(entry):
            return
        if entry.gid in self.paused:
            return
        if not self.pending.holds(entry.job, shard, entry.gid):
            self.pending.insert(entry.job, shard, entry.gid)

    def _let_go(self, gid: str) -> None:
        self._owners.pop(gid, None)
        self._programs.let_go(gid)

    # -- the life of a transaction ------------------------------------------------------------------------------------

    def _begin(self, connection: int, client: _Client, begin: Begin, now_ms: int) -> Reaction:
        hello, shard = client.hello, client.shard
        if self.pending.has(hello.job):
            return _refused(shard, "recover_first", f"job {hello.job} has transactions to recover")
        if begin.gid in self._shard_of:
            return _refused(shard, "protocol", f"transaction {begin.gid} is known already")
        if wrong := wrong_begin(begin):
            return _refused(shard, "protocol", wrong)
        entry = Entry(
            gid=begin.gid,
            job=hello.job,
            profile=hello.profile,
            fingerprint=hello.fingerprint,
            resources=list(begin.resources),
            began_ms=now_ms,
            identities=dict(begin.identities),
        )
        self._owners[begin.gid] = connection
        self._shard_of[begin.gid] = shard
        return Reaction(_OK, shard, Begun(entry))

    def _of_transaction(self, connection: int, client: _Client, request: Request, gid: str) -> Reaction:
        """A request about a transaction that the connection owns, or works on as one program of several."""
        shard = self._shard_of.get(gid)
        if shard is None:
            return _refused(client.shard, "unknown", f"transaction {gid} is not known")
        entry, owner = self._entry(gid), self._owners.get(gid)
        if owner == connection and not isinstance(request, ProgramRequest):
            return self._of_owner(client, request, entry, shard)
        reply, record = self._programs.received(connection, client.hello, request, entry, owner)
        if isinstance(request, Settle) and record is not None and owner == connection:
            self._let_go(gid)
        return Reaction(reply, shard, record, at_once=isinstance(request, (Started, Settle)))

    def _of_owner(  # noqa: PLR0911  # one for each request
        self, client: _Client, request: Request, entry: Entry, shard: int
    ) -> Reaction:
        gid = entry.gid
        match request:
            case Started() | Heuristic() if wrong := wrong_codes(request, entry):
                return _refused(shard, "protocol", wrong)
            case Started(_, codes):
                return Reaction(_OK, shard, StartedBy(gid, codes), at_once=True)
            case Join(_, resource) if PROGRAM_MARK in resource:
                return _refused(shard, "protocol", f"{resource!r} is the branch of a joined program")
            case Join():
                reply, record = joined(request, entry)
                return Reaction(reply, shard, record)
            case Decide():
                return self._decide(shard, request, entry)
            case Done() if self._programs.at_work(gid):
                return _refused(shard, "protocol", f"transaction {gid}: other programs work on it")
            case Done():
                # A transaction that met heuristic completions stays, though its other branches are done.
                return Reaction(_OK, shard, Met(gid, {}) if entry.heuristics else Ended(gid), at_once=True)
            case Heuristic(_, codes, unfinished):
                unknown = bool(entry.programs)  # what they have left meanwhile: `Settle` ends the entry
                return Reaction(_OK, shard, Met(gid, codes, unfinished or unknown))
            case Release(_, reason):
                client.gave_way.add(gid)
                told = reason[:MAX_REASON]
                return Reaction(_OK, shard, Attempted(gid, entry.attempts, told, parked=False, refusals=entry.refusals))
            case Failed(_, reason, refused):
                refusals = entry.refusals + refused
                parked = refused and refusals >= self._max_attempts
                told = reason[:MAX_REASON]
                return Reaction(_OK, shard, Attempted(gid, entry.attempts + 1, told, parked=parked, refusals=refusals))
            case _:
                raise AssertionError(request)

    def _decide(self, shard: int, decide: Decide, entry: Entry) -> Reaction:
        if wrong := wrong_prepared(decide.prepared, entry):
            return _refused(shard, "protocol", wrong)
        if wrong := why_undecidable(entry):
            return _refused(shard, "doomed", wrong)
        return Reaction(_OK, shard, Decided(entry.gid, decide.prepared))

    def _apply(self, shard: int, record: Record) -> None:
        assert not isinstance(record, Image)
        apply(self._shards[shard], record)
        match record:
            case Ruled(entry):
                self._shard_of[entry.gid] = shard
            case Ended(gid):
                self._owners.pop(gid, None)
                self.paused.discard(gid)
                self._programs.forget(gid)
                del self._shard_of[gid]
            case Attempted(gid):
                self._let_go(gid)
                self._wait_for_recovery(self._entry(gid))
            case Settled(gid):
                self.paused.discard(gid)  # as `Entry.parked`: what is left now has perhaps never been tried
                self._wait_for_recovery(self._entry(gid))
            case Met(gid, _, False):
                self._let_go(gid)  # nothing is left to do for its owner
            case _:
                pass

    def _forget(self, client: _Client, gid: str) -> Reaction:
        shard = self._shard_of.get(gid)
        if shard is None:
            return _refused(client.shard, "unknown", f"transaction {gid} is not known")
        entry = self._entry(gid)
        if not is_complete(entry) or gid in self._owners:
            state = self._state(entry)
            return _refused(
                shard,
                "protocol",
                f"transaction {gid} is {state}: only one that is complete can be forgotten: heuristic or ruled",
            )
        return Reaction(_OK, shard, Ended(gid))

    def _rule(self, client: _Client, rule: Rule, now_ms: int) -> Reaction:
        """Record a ruling, or what came of it."""
        shard = self._shard_of.get(rule.gid)
        decided = ruling(rule, None if shard is None else self._entry(rule.gid), client.hello, now_ms)
        at = client.shard if shard is None else shard
        return Reaction(decided, at) if isinstance(decided, Refused) else Reaction(_OK, at, decided)

    # -- what is shown ------------------------------------------------------------------------------------------------

    def _list(self, client: _Client, request: List, now_ms: int) -> Reaction:
        """A page. The ids are sorted for the first page of a list: the pages of n entries cost n log n together.

        Later pages are those of the entries at the time of the first page, less what has ended since.
        """
        if not request.after or client.listed is None or client.listed[0] != request.job:
            wanted = (gid for gid in self._shard_of if request.job in ("", self._entry(gid).job))
            client.listed = request.job, sorted(wanted)
        _, gids = client.listed
        at = bisect.bisect_right(gids, request.after)
        there = (gid for gid in itertools.islice(gids, at, None) if gid in self._shard_of)
        page = first_page(
            Shown(self._entry(gid), self._state(self._entry(gid)), self.first + self._shard_of[gid]) for gid in there
        )
        more = bool(page) and page[-1].entry.gid != gids[-1]
        return Reaction(Listing(page, more, now_ms), client.shard)

    def _state(self, entry: Entry) -> str:
        if entry.gid in self._owners or not self._programs.is_left(entry):
            return "active"
        if is_complete(entry):
            return "ruled" if entry.ruled else "heuristic"
        return "parked" if entry.parked else "pending"

    def counts(self) -> dict[str, int]:
        """How many entries are in each state."""
        found = dict.fromkeys(("active", "pending", "parked", "heuristic", "ruled"), 0)
        for entries in self._shards:
            for entry in entries.values():
                found[self._state(entry)] += 1
        return found

    def _entry(self, gid: str) -> Entry:
        return self._shards[self._shard_of[gid]][gid]


def _refused(shard: int, code: str, text: str) -> Reaction:
    return Reaction(Refused(code, text), shard)
