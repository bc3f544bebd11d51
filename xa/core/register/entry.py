"""The state server's memory of a transaction, and the records that change it.

Records are what a status file holds, in order. `Image` starts a file: all entries of that moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from understudy.xa.core.xid import program_of, resource_of

STATUS_FORMAT: Final = 1
"""Of the status files; a server refuses files of a newer one."""


class Entry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One transaction block and its resource manager blocks.

    Attributes:
        gid: the global id.
        resources: labels of the branches that may be there, in the order of their start: names of resource managers, and of joined
            programs ``bank~1`` (see `xid`).
        fingerprint: of the profile; recovery by another profile is refused.
        began_ms: wall clock.
        commit: the decision to commit is recorded. Without it recovery rolls back.
        started: resource manager to the code of its start.
        identities: resource manager to the server or database that it was when its first branch was recorded. Recovery elsewhere is
            refused. A resource manager without an identity is not here.
        prepared: label of each branch that is prepared, to the proof that its resource manager gave; "" if it gave none.
            Recorded by a vote, and by the decision. Older servers know neither, and refuse a status that has one.
        attempts: recoveries that failed.
        refusals: of those, the ones that a resource manager refused.
        reason: why the last attempt failed, or why the client let go.
        parked: no recovery is tried until an operator asks.
        heuristics: resource manager to its heuristic code. Such an entry stays for people.
        unfinished: heuristic completions were met, and another branch may not be complete yet: recovery goes on with it. Older
            servers do not know it, and refuse a status that has it.
        ruled: branch to what an operator has decided and what the resource manager answered. Such an entry stands for branches
            that no entry knew, and stays for people, too. Older servers do not know it, and refuse a status that has it.
        programs: for each program that has joined, by its number from 1, whether it has voted yes.
        doomed: why the transaction can only be rolled back. Older servers know neither, and refuse a status that has one.
    """

    gid: str
    job: str
    profile: str
    fingerprint: str
    resources: list[str]
    began_ms: int
    commit: bool = False
    started: dict[str, int] = {}
    identities: dict[str, str] = {}
    prepared: dict[str, str] = {}
    attempts: int = 0
    refusals: int = 0
    reason: str = ""
    parked: bool = False
    heuristics: dict[str, int] = {}
    unfinished: bool = False
    ruled: dict[str, str] = {}
    programs: list[bool] = []
    doomed: str = ""

    def decide(self, prepared: Mapping[str, str]) -> None:
        """Record the decision to commit, and the proofs of the branches that no vote has recorded."""
        self.commit = True
        self.prepared = {**self.prepared, **prepared}


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="record", tag=str.lower):
    pass


class Image(_Record, frozen=True):
    """All entries, at the head of a file.

    Attributes:
        format: `STATUS_FORMAT` of the server that wrote it.
        shard: number of the shard, from 0.
    """

    format: int
    shard: int
    entries: list[Entry]


class Begun(_Record, frozen=True):
    """A transaction begins."""

    entry: Entry


class Joined(_Record, frozen=True, omit_defaults=True):
    """A resource manager joins.

    Attributes:
        identity: see `Entry.identities`.
    """

    gid: str
    resource: str
    identity: str = ""


class StartedBy(_Record, frozen=True):
    """Codes of the starts."""

    gid: str
    codes: dict[str, int]


class Decided(_Record, frozen=True, omit_defaults=True):
    """The decision to commit.

    Attributes:
        prepared: see `Entry.prepared`.
    """

    gid: str
    prepared: dict[str, str] = {}


class Entered(_Record, frozen=True, omit_defaults=True):
    """One more program joins, and will start these branches; see `Entry.programs`.

    Attributes:
        identities: of resource managers that the entry does not know yet; see `Entry.identities`.
    """

    gid: str
    branches: list[str]
    identities: dict[str, str] = {}


class Voted(_Record, frozen=True, omit_defaults=True):
    """A joined program has prepared these branches, and has no others.

    Attributes:
        proofs: label to proof; see `Entry.prepared`.
    """

    gid: str
    program: int
    prepared: list[str]
    proofs: dict[str, str] = {}


class Doomed(_Record, frozen=True):
    """The transaction can only be rolled back."""

    gid: str
    reason: str


class Settled(_Record, frozen=True):
    """These branches are complete, and others may not be."""

    gid: str
    branches: list[str]


class Attempted(_Record, frozen=True, omit_defaults=True):
    """A recovery failed, or the client let go."""

    gid: str
    attempts: int
    reason: str
    parked: bool
    refusals: int = 0


class Met(_Record, frozen=True, omit_defaults=True):
    """Heuristic completions were met; see `Entry.unfinished`."""

    gid: str
    codes: dict[str, int]
    unfinished: bool = False


class Ruled(_Record, frozen=True):
    """An operator's ruling on branches that no entry knew; replaces an earlier one of the same global id."""

    entry: Entry


class Ended(_Record, frozen=True):
    """The entry goes."""

    gid: str


class Owned(_Record, frozen=True):
    """The owner that writes from here on: engine `queue` has this record behind each image.

    Attributes:
        owner: of one run of one state server, and of no other.
    """

    owner: str


Record = (
    Image
    | Owned
    | Begun
    | Joined
    | StartedBy
    | Decided
    | Entered
    | Voted
    | Doomed
    | Settled
    | Attempted
    | Met
    | Ruled
    | Ended
)


def is_complete(entry: Entry) -> bool:
    """True if no branch is left to be completed: the entry is kept for people."""
    return bool(entry.ruled) or (bool(entry.heuristics) and not entry.unfinished)


def why_undecidable(entry: Entry) -> str:
    """Why the decision to commit cannot be recorded; "" if it can."""
    if entry.doomed:
        return f"transaction {entry.gid} can only be rolled back: {entry.doomed}"
    missing = ", ".join(str(number) for number, voted in enumerate(entry.programs, 1) if not voted)
    return f"transaction {entry.gid} cannot be committed: no vote of program {missing}" if missing else ""


def apply(entries: dict[str, Entry], record: Record) -> None:
    """Change the entries as the record says. A record of an entry that is not there is our own mistake."""
    match record:
        case Image():
            entries.clear()
            entries.update((entry.gid, entry) for entry in record.entries)
        case Begun(entry):
            assert entry.gid not in entries, entry.gid
            entries[entry.gid] = entry
        case Joined(gid, resource, identity):
            entries[gid].resources = [*entries[gid].resources, resource]
            told = {resource_of(resource): identity} if identity else {}
            entries[gid].identities = {**told, **entries[gid].identities}
        case StartedBy(gid, codes):
            entries[gid].started = {**entries[gid].started, **codes}
        case Decided(gid, prepared):
            entries[gid].decide(prepared)
        case Entered(gid) | Voted(gid) | Doomed(gid) | Settled(gid):
            _apply_of_programs(entries[gid], record)
        case Attempted(gid, attempts, reason, parked, refusals):
            entry = entries[gid]
            entry.attempts, entry.reason, entry.parked, entry.refusals = attempts, reason, parked, refusals
        case Met(gid, codes, unfinished):
            entries[gid].heuristics = {**entries[gid].heuristics, **codes}
            entries[gid].unfinished = unfinished
        case Ruled(entry):
            entries[entry.gid] = entry
        case Ended(gid):
            del entries[gid]
        case Owned():
            pass


def _apply_of_programs(entry: Entry, record: Entered | Voted | Doomed | Settled) -> None:
    match record:
        case Entered(_, branches, identities):
            entry.resources = [*entry.resources, *branches]
            entry.identities = {**identities, **entry.identities}
            entry.programs = [*entry.programs, False]
        case Voted(_, program, prepared, proofs):
            entry.prepared = {**entry.prepared, **{one: proofs.get(one, "") for one in prepared}}
            entry.resources = [one for one in entry.resources if program_of(one) != program or one in prepared]
            entry.programs = [voted or number == program for number, voted in enumerate(entry.programs, 1)]
        case Doomed(_, reason):
            entry.doomed = reason
        case Settled(_, branches):
            entry.resources = [one for one in entry.resources if one not in branches]
            entry.prepared = {one: proof for one, proof in entry.prepared.items() if one not in branches}
            entry.parked = False  # what is left now has perhaps never been tried
