"""Programs: what the state server decides on transactions that several programs work on.

The program that began a transaction owns it. It makes the transaction open (`Share`), and other programs join (`Enter`). A joined
program works on branches of its own until it votes (`Vote`) or gives up (`Doom`, then `Settle`). While it works, its branches are
its own: neither the owner nor a recovery completes them. When its connection ends without a vote, they are left to the others,
and the transaction can only be rolled back.

The record of the transaction holds which programs joined, which have voted, and whether it can only be rolled back. Which
connection works as which program is known in memory alone: after a restart of the server no program has a connection, and all
branches are left to recovery.
"""

from __future__ import annotations

import attrs
import msgspec

from understudy.xa.core.register.bounds import (
    MAX_REASON,
    wrong_codes,
    wrong_prepared,
    wrong_profile,
)
from understudy.xa.core.register.entry import (
    Doomed,
    Ended,
    Entered,
    Entry,
    Met,
    Record,
    Settled,
    StartedBy,
    Voted,
    is_complete,
    why_undecidable,
)
from understudy.xa.core.register.joining import joined, refused_program
from understudy.xa.core.register.wire import (
    Doom,
    Enter,
    Gather,
    Gathered,
    Hello,
    Join,
    Ok,
    Refused,
    Reply,
    Request,
    Settle,
    Share,
    Started,
    Vote,
    Welcome,
)
from understudy.xa.core.xid import label_of, program_of, resource_of

Decision = tuple[Reply, Record | None]


@attrs.define
class _Shared:
    """One open transaction.

    Attributes:
        begun_by: the connection that made it open; None when that one is gone or has let go.
        closing: nobody joins any more.
        at_work: number of a program to its connection.
    """

    begun_by: int | None
    closing: bool = False
    at_work: dict[int, int] = attrs.field(factory=dict)


class Programs:
    """Programs at work, by shared transaction."""

    def __init__(self) -> None:
        self._shared: dict[str, _Shared] = {}

    # -- what the core asks -------------------------------------------------------------------------------------------

    def at_work(self, gid: str) -> frozenset[int]:
        """Numbers of the joined programs that still work."""
        shared = self._shared.get(gid)
        return frozenset(shared.at_work) if shared is not None else frozenset()

    def is_left(self, entry: Entry) -> bool:
        """True if an entry without an owner has something that recovery may complete now."""
        working = self.at_work(entry.gid)
        return not working or any(program_of(one) not in working for one in entry.resources)

    def view(self, entry: Entry) -> Entry:
        """The entry without the branches of programs that still work."""
        working = self.at_work(entry.gid)
        if not working:
            return entry
        left = [one for one in entry.resources if program_of(one) not in working]
        return msgspec.structs.replace(entry, resources=left)

    def let_go(self, gid: str) -> None:
        """The program that began the transaction is gone, or does not go on."""
        if (shared := self._shared.get(gid)) is not None:
            shared.begun_by = None
            self._drop_if_idle(gid, shared)

    def left(self, connection: int) -> list[str]:
        """A connection has ended; returns the transactions on which it worked as a joined program."""
        found = []
        for gid, shared in list(self._shared.items()):
            if (number := self._number(shared, connection)) is not None:
                del shared.at_work[number]
                found.append(gid)
                self._drop_if_idle(gid, shared)
        return found

    def forget(self, gid: str) -> None:
        """The entry is gone."""
        self._shared.pop(gid, None)

    # -- requests -----------------------------------------------------------------------------------------------------

    def received(self, connection: int, hello: Hello, request: Request, entry: Entry, owner: int | None) -> Decision:
        """Decide on a request about a shared transaction.

        Args:
            connection: that asks.
            hello: what it said first.
            request: what it says.
            entry: of the transaction.
            owner: the connection that owns it.
        """
        if isinstance(request, Enter):
            return self._enter(connection, hello, request, entry, owner)
        shared = self._shared.get(entry.gid)
        number = None if shared is None else self._number(shared, connection)
        if shared is not None and number is not None:
            return self._of_program(shared, number, request, entry, owner)
        if owner == connection:
            return self._of_owner(connection, shared, request, entry)
        return Refused("not_owner", f"transaction {entry.gid} is not this connection's any more"), None

    def _enter(self, connection: int, hello: Hello, enter: Enter, entry: Entry, owner: int | None) -> Decision:
        gid = entry.gid
        if (entry.job, entry.fingerprint) != (hello.job, hello.fingerprint):
            return Refused("wrong_profile", wrong_profile(entry, hello)), None
        if entry.doomed:
            return Refused("doomed", f"transaction {gid} can only be rolled back: {entry.doomed}"), None
        if entry.commit or is_complete(entry):
            return Refused("closed", f"transaction {gid} is decided"), None
        shared = self._shared.get(gid)
        if shared is None or shared.begun_by is None:
            return Refused("closed", f"transaction {gid} is not open: the program that began it has ended"), None
        if shared.closing:
            return Refused("closed", f"transaction {gid} is being committed or rolled back"), None
        if owner == connection or self._number(shared, connection) is not None:
            return Refused("protocol", f"this connection works on transaction {gid} already"), None
        if (refused := refused_program(enter, entry)) is not None:
            return refused, None
        number = len(entry.programs) + 1
        shared.at_work[number] = connection
        recorded = {one: enter.identities[one] for one in enter.resources if one in enter.identities}
        return Welcome(number), Entered(gid, [label_of(one, number) for one in enter.resources], recorded)

    def _of_program(  # noqa: PLR0911  # one for each request
        self, shared: _Shared, number: int, request: Request, entry: Entry, owner: int | None
    ) -> Decision:
        gid = entry.gid
        own = {one for one in entry.resources if program_of(one) == number}
        if isinstance(request, Vote) and not own.issuperset(request.prepared):
            return Refused("protocol", f"transaction {gid}: program {number} votes for branches not its own"), None
        if isinstance(request, Vote) and (
            wrong := wrong_prepared({one: request.proofs.get(one, "") for one in request.prepared}, entry)
            or wrong_prepared(request.proofs, entry)
        ):
            return Refused("protocol", wrong), None
        if isinstance(request, Doom):
            return self._doom(shared, request, entry)
        if isinstance(request, Settle):
            del shared.at_work[number]
            self._drop_if_idle(gid, shared)
            return self._settled(own.intersection(request.branches), entry, owned=owner is not None)
        if entry.doomed or shared.begun_by is None:
            reason = entry.doomed or "the program that began it has ended"
            return Refused("doomed", f"transaction {gid} can only be rolled back: {reason}"), None
        match request:
            case Started() if wrong := wrong_codes(request, entry):
                return Refused("protocol", wrong), None
            case Started(_, codes):
                return Ok(), StartedBy(gid, codes)
            case Join(_, label) if label != label_of(resource_of(label), number):
                return Refused("protocol", f"{label!r} is no branch of program {number}"), None
            case Join():
                return joined(request, entry)
            case Vote(_, prepared, proofs):
                del shared.at_work[number]
                return Ok(), Voted(gid, number, prepared, proofs)
            case _:
                return Refused("not_owner", f"transaction {gid} is that of the program that began it"), None

    def _of_owner(self, connection: int, shared: _Shared | None, request: Request, entry: Entry) -> Decision:
        gid = entry.gid
        match request:
            case Share() if entry.commit or entry.doomed or is_complete(entry):
                return Refused("closed", f"transaction {gid} is decided, or can only be rolled back"), None
            case Share():
                self._shared.setdefault(gid, _Shared(connection))
                return Ok(), None
            case Gather() if shared is not None:
                shared.closing = True
                return self._gathered(entry), None
            case Gather():
                return Refused("protocol", f"transaction {gid} is not open"), None
            case Doom():
                return self._doom(shared, request, entry, closes=True)
            case Settle(_, branches):
                if any(one in branches for one in entry.resources if program_of(one) in self.at_work(gid)):
                    return Refused("protocol", f"transaction {gid}: a program works on one of {branches}"), None
                own = {one for one in entry.resources if not program_of(one)}
                return self._settled(own.union(branches), entry, owned=False)
            case _:
                return Refused("protocol", f"transaction {gid}: the program that began it does not vote"), None

    # -- parts --------------------------------------------------------------------------------------------------------

    def _gathered(self, entry: Entry) -> Reply:
        found = self._progress(entry)
        if entry.doomed:
            return Refused("doomed", why_undecidable(entry))
        lost = [n for n, voted in enumerate(entry.programs, 1) if not voted and n not in found.waits]
        if lost:
            return Refused("doomed", f"transaction {entry.gid}: program {lost[0]} has ended without a vote")
        return found

    def _progress(self, entry: Entry) -> Gathered:
        working = self.at_work(entry.gid)
        others = [one for one in entry.resources if program_of(one) and program_of(one) not in working]
        return Gathered(others, sorted(working), {one: entry.prepared[one] for one in others if one in entry.prepared})

    def _doom(self, shared: _Shared | None, doom: Doom, entry: Entry, *, closes: bool = False) -> Decision:
        if entry.commit or is_complete(entry):
            return Refused("protocol", f"transaction {entry.gid} is decided"), None
        if shared is not None and closes:
            shared.closing = True
        record = None if entry.doomed else Doomed(entry.gid, doom.reason[:MAX_REASON] or "asked for")
        return self._progress(entry), record

    def _settled(self, complete: set[str], entry: Entry, *, owned: bool) -> Decision:
        """The entry goes with its last branch, unless an owner has it, a program works on it or people must see it."""
        if owned or self.at_work(entry.gid) or not complete.issuperset(entry.resources):
            return Ok(), Settled(entry.gid, [one for one in entry.resources if one in complete])
        return Ok(), Met(entry.gid, {}) if entry.heuristics else Ended(entry.gid)

    def _number(self, shared: _Shared, connection: int) -> int | None:
        return next((number for number, found in shared.at_work.items() if found == connection), None)

    def _drop_if_idle(self, gid: str, shared: _Shared) -> None:
        if shared.begun_by is None and not shared.at_work:
            self._shared.pop(gid, None)
