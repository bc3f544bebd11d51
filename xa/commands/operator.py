"""The work of an operator's commands: look at the state server and the resource managers, and complete what is left.

A branch that the state server does not know is an *orphan*: its entry was lost with the status file, or another program made it.
Orphans are listed, and never completed by recovery.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import attrs

from understudy.xa.core.codes import Answer, code_name
from understudy.xa.core.errors import XaError
from understudy.xa.core.manager.finish import finished
from understudy.xa.core.manager.recovery import is_complete, recover
from understudy.xa.core.manager.steps import Tell, Verb, VerbName
from understudy.xa.core.profiles.profile import Profile
from understudy.xa.core.register.bounds import other_resource
from understudy.xa.core.register.entry import Entry, why_undecidable
from understudy.xa.core.register.wire import Claimed, Decide, Forget, Refused, Request, Rule, Shown, Take
from understudy.xa.core.xid import Xid, branch_of, job_digits, resource_of
from understudy.xa.resource_managers.factory import make_resource_manager
from understudy.xa.resource_managers.port import ResourceManager
from understudy.xa.session import Session
from understudy.xa.sockets.link import StateLink

FORGETTABLE: Final = ("heuristic", "ruled")


class RefusedError(XaError):
    """An operator's request is refused; nothing was changed."""


@attrs.frozen
class Orphan:
    """A branch that a resource manager has in doubt, and of which the state server has no entry."""

    resource: str
    xid: Xid
    state: str

    @property
    def gid(self) -> str:
        return self.xid.gid


@attrs.frozen
class Found:
    """Everything that is in doubt.

    Attributes:
        unreachable: resource manager to why it does not list its branches.
    """

    entries: list[Shown]
    now_ms: int
    orphans: list[Orphan]
    unreachable: dict[str, str]

    def of(self, names: Collection[str]) -> Found:
        """Without the transactions that have no branch in these resource managers; no names: as it is."""
        return attrs.evolve(self, entries=[one for one in self.entries if not names or has_branch(one.entry, names)])


def has_branch(entry: Entry, names: Collection[str]) -> bool:
    """True if a transaction may have a branch in one of these resource managers, or a ruling names one."""
    ruled = (branch.partition(" ")[0] for branch in entry.ruled)
    labels = (*entry.resources, *entry.heuristics)
    return any(name in names for name in (*map(resource_of, labels), *ruled))


class Operator:
    """Works on one profile, under one job. Close it after `complete`.

    Args:
        only: resource managers to look at and to complete branches in; empty: all of the profile.
    """

    def __init__(self, profile: Profile, job: str, only: Iterable[str] = ()) -> None:
        self._profile = profile
        self._job = job
        self._names = list(only) or [one.name for one in profile.resources]
        for name in self._names:
            profile.resource(name)
        self._session: Session | None = None

    def close(self) -> None:
        """Close the connections that `complete` has opened."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def look(self, job: str = "") -> Found:
        """List entries of a job, or of all jobs, and orphans."""
        with self._link() as link:
            entries, now_ms = link.entries(job)
            known = _known(entries if not job else link.entries()[0])
        orphans, unreachable = self._unknown(self._names, known, job)
        if orphans:  # programs go on meanwhile: a transaction may have begun since the first list
            with self._link() as link:
                known = _known(link.entries()[0])
            again, gone = self._unknown({one.resource for one in orphans}, known, job)
            unreachable |= gone
            there = set(again)
            orphans = [one for one in orphans if one in there]
        return Found(entries, now_ms, orphans, unreachable)

    def _unknown(self, names: Iterable[str], known: set[bytes], job: str) -> tuple[list[Orphan], dict[str, str]]:
        """Branches in doubt that are none of the known transactions, and why a resource manager does not list its own."""
        found: list[Orphan] = []
        unreachable: dict[str, str] = {}
        for name in names:
            resource = self._resource(name)
            try:
                found += [
                    Orphan(name, branch.xid, branch.state)
                    for branch in resource.recover()
                    if not (branch.xid.is_ours and branch.xid.global_id in known) and self._is_of(branch.xid, job)
                ]
            except XaError as error:
                unreachable[name] = str(error)
            finally:
                resource.close()
        return found, unreachable

    def entry(self, gid: str) -> Shown | None:
        """The entry of a transaction."""
        with self._link() as link:
            return next((one for one in link.entries()[0] if one.entry.gid == gid), None)

    def connect(self) -> None:
        """Open what `complete` needs, so that a server that is down fails once, and not for each transaction.

        Raises:
            ResourceManagerError, StateServerError, WrongProfileError: as `Session`.
        """
        self._working()

    def check(self, shown: Shown, *, commit: bool | None, allow_missing: bool = False) -> None:
        """Raise what `complete` would raise before its first step. Nothing is changed, and nothing is taken.

        Args:
            shown: the transaction, as it is listed.
            commit: as `complete`.
            allow_missing: as `complete`.

        Raises:
            RefusedError: as `complete`.
            ResourceManagerError, StateServerError, WrongProfileError: as `Session`.
        """
        entry = shown.entry
        if shown.state == "active":
            raise RefusedError(f"transaction {entry.gid} is in use by a connected program")
        if shown.state in FORGETTABLE:
            raise RefusedError(f"transaction {entry.gid} is complete, heuristically: see it, then forget it")
        session = self._working()
        if (entry.job, entry.fingerprint) != (self._job, self._profile.fingerprint):
            raise RefusedError(
                f"transaction {entry.gid} is of job {entry.job} and profile {entry.profile!r} (fingerprint "
                f"{entry.fingerprint}), and this is job {self._job} and profile {self._profile.name!r} (fingerprint "
                f"{self._profile.fingerprint})"
            )
        _check_place(session, entry)
        _check_verdict(session, entry, commit=commit, allow_missing=allow_missing)

    def complete(
        self, gid: str, *, commit: bool | None, allow_missing: bool = False
    ) -> tuple[Entry, dict[str, Answer]]:
        """Complete a transaction that the state server knows. The next one uses the same connections.

        Args:
            gid: of the transaction.
            commit: the operator's decision; None: as the record says.
            allow_missing: commit what is not decided, though a branch is in doubt nowhere: the operator knows that it has written
                nothing.

        Raises:
            RefusedError: it is in use, of another job, the record speaks against it, or a branch is missing.
            RecoveryFailedError: a branch could not be completed.
        """
        session = self._working()
        try:
            entry = self._taken(session, gid)
            _check_place(session, entry)
            _check_verdict(session, entry, commit=commit, allow_missing=allow_missing)
            if commit and not entry.commit:
                found = {label: entry.prepared.get(label, "") for label in _in_doubt(session, entry)}
                _ask(session, Decide(gid, found))
                entry.decide(found)
            return entry, session.run(recover(entry))
        except BaseException:
            self.close()  # with its link the session lets go of a transaction that it has taken
            raise

    def complete_orphans(self, gid: str, *, commit: bool) -> dict[str, Answer]:
        """Commit or roll back the branches of a global id that no entry knows; returns ``resource xid`` to the answer.

        What is to be done is recorded on the state server before the first verb, and each answer afterwards.

        Raises:
            RefusedError: the state server does not record it; nothing was done.
        """
        verb = VerbName.COMMIT if commit else VerbName.ROLLBACK
        answers: dict[str, Answer] = {}
        with contextlib.ExitStack() as stack:
            branches: dict[str, tuple[ResourceManager, Verb]] = {}
            for name in self._names:
                resource = self._resource(name)
                stack.callback(resource.close)
                for branch in resource.recover():
                    if branch.xid.gid == gid:
                        branches[f"{name} {branch.xid}"] = resource, Verb(verb, name, branch.xid)
            if branches:
                self._record(gid, dict.fromkeys(branches, f"{verb} asked for"))
            for text, (resource, step) in branches.items():
                answers[text] = _finished(resource, step)
        if answers:
            self._record(gid, {text: f"{verb}: {answer}" for text, answer in answers.items()})
        return answers

    def _record(self, gid: str, ruled: dict[str, str]) -> None:
        with self._link() as link:
            reply = link.ask(Rule(gid, ruled))
        if isinstance(reply, Refused):
            raise RefusedError(reply.text)

    def forgettable(self, gid: str) -> Shown:
        """The entry of a transaction whose record may be dropped.

        Raises:
            RefusedError: there is none, or it may not.
        """
        shown = self.entry(gid)
        if shown is None or shown.state not in FORGETTABLE:
            state = "not known" if shown is None else shown.state
            raise RefusedError(
                f"transaction {gid} is {state}: only one with heuristic completions, or a ruling, can be forgotten"
            )
        return shown

    def forget(self, gid: str) -> None:
        """Drop a heuristic entry, on the resource managers and on the state server; or the record of a ruling.

        Raises:
            RefusedError: it is not one.
        """
        shown = self.forgettable(gid)
        for label in shown.entry.heuristics:
            resource = self._resource(resource_of(label))
            try:
                resource.call(Verb(VerbName.FORGET, label, branch_of(gid, label, shown.entry.job)))
            finally:
                resource.close()
        with self._link() as link:
            reply = link.ask(Forget(gid))
        if isinstance(reply, Refused):
            raise RefusedError(reply.text)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _working(self) -> Session:
        if self._session is None:
            resources = {name: self._resource(name) for name in self._all_names()}
            self._session = Session(self._profile, self._job, resources)
        return self._session

    def _taken(self, session: Session, gid: str) -> Entry:
        reply = session.link.ask(Take(gid))
        if not isinstance(reply, Claimed):
            raise RefusedError(getattr(reply, "text", str(reply)))
        return reply.entry

    def _link(self) -> StateLink:
        profile = self._profile
        return StateLink(
            profile.state_server,
            job=self._job,
            profile=profile.name,
            fingerprint=profile.fingerprint,
            login=profile.login,
        )

    def _resource(self, name: str) -> ResourceManager:
        return make_resource_manager(self._profile.resource(name))

    def _all_names(self) -> list[str]:
        return [one.name for one in self._profile.resources]

    def _is_of(self, xid: Xid, job: str) -> bool:
        return not job or (xid.is_ours and xid.job_digits == job_digits(job))


def _known(entries: Iterable[Shown]) -> set[bytes]:
    return {one.entry.gid.encode() for one in entries if not one.entry.ruled}


def _check_place(session: Session, entry: Entry) -> None:
    """Refuse to complete branches in a resource manager that is another one than the recorded one."""
    if wrong := other_resource(entry, session.identities):
        raise RefusedError(f"{wrong}: nothing was done")


def _in_doubt(session: Session, entry: Entry) -> list[str]:
    """Labels of the branches of a transaction that its resource managers list as in doubt."""
    listed = {name: {one.xid for one in resource.recover()} for name, resource in session.resources.items()}
    return [one for one in entry.resources if branch_of(entry.gid, one, entry.job) in listed[resource_of(one)]]


def _check_verdict(session: Session, entry: Entry, *, commit: bool | None, allow_missing: bool) -> None:
    """Raise unless the record, and what is in doubt, allow the operator's request."""
    if commit is False and entry.commit:
        raise RefusedError(
            f"transaction {entry.gid} is decided as commit, and a branch of it may be committed: rollback is refused"
        )
    if commit and not entry.commit and (wrong := why_undecidable(entry)):
        raise RefusedError(wrong)
    if commit and not entry.commit and not allow_missing:
        _refuse_if_missing(session, entry)


def _refuse_if_missing(session: Session, entry: Entry) -> None:
    """Without a decision, a branch that is in doubt nowhere may never have been prepared: to commit the others makes a half."""
    found = _in_doubt(session, entry)
    for label in entry.resources:
        if label not in found:
            raise RefusedError(
                f"transaction {entry.gid} has no branch in doubt in {label}: it was not prepared there, or has written nothing; "
                "roll it back, or commit the others with --allow-missing"
            )


def _ask(session: Session, request: Request) -> None:
    reply = session.link.ask(request)
    if isinstance(reply, Refused):
        raise RefusedError(reply.text)


def _finished(resource: ResourceManager, verb: Verb) -> Answer:
    """The second phase of an orphan; while it is busy, again."""
    steps = finished(verb)
    try:
        step = next(steps)
        while True:
            if isinstance(step, Verb):
                step = steps.send(resource.call(step))
            else:
                assert not isinstance(step, Tell)
                time.sleep(step.ms / 1000)
                step = steps.send(None)
    except StopIteration as end:
        answer: Answer = end.value
        return answer


def as_rows(found: Found) -> dict[str, Any]:
    """The list as JSON has it."""
    return {
        "transactions": [
            {
                "gid": one.entry.gid,
                "state": one.state,
                "decision": "commit" if one.entry.commit else None,
                "job": one.entry.job,
                "profile": one.entry.profile,
                "resources": one.entry.resources,
                "age_s": round(max(found.now_ms - one.entry.began_ms, 0) / 1000, 3),
                "attempts": one.entry.attempts,
                "reason": one.entry.reason,
                "heuristics": {name: code_name(code) for name, code in one.entry.heuristics.items()},
                "ruled": one.entry.ruled,
                "programs": one.entry.programs,
                "doomed": one.entry.doomed,
                "shard": one.shard,
            }
            for one in found.entries
        ],
        "orphans": [
            {
                "gid": one.gid,
                "resource": one.resource,
                "xid": str(one.xid),
                "state": one.state,
                "ours": one.xid.is_ours,
            }
            for one in found.orphans
        ],
        "unreachable": found.unreachable,
    }


def answered_badly(answers: Mapping[str, Answer], *, commit: bool) -> dict[str, str]:
    """The answers that do not complete a branch."""
    return {name: str(answer) for name, answer in answers.items() if not is_complete(answer.code, committed=commit)}
