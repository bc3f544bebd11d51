"""``understudy xa``: an operator's word on distributed transactions (docs/xa.md).

Nothing is changed without ``--yes``: a command then says what it would do.

Exit codes: 0 done, or shown; 1 not done, or a branch was completed against the verdict, or a server cannot be reached; 2 wrong
usage or a profile that cannot be used.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from understudy.xa.commands.operator import Operator, RefusedError, answered_badly, as_rows, has_branch
from understudy.xa.core.codes import Answer, XaCode, code_name
from understudy.xa.core.errors import ConfigError, XaError
from understudy.xa.core.manager.recovery import against_verdict
from understudy.xa.core.profiles.job import checked_job
from understudy.xa.core.register.wire import Shown
from understudy.xa.manager import TransactionManager, read_profile

DEFAULT_FILE: Final = Path("xa.toml")
PROGRESS_S: Final = 5.0

_Gid = Annotated[str, typer.Argument(help="Global id of the transaction, as `xa list` shows it: % if it is empty.")]
ConfigFile = Annotated[Path, typer.Option(help="The file of profiles.")]
ProfileName = Annotated[
    str | None, typer.Option(help="Which profile.", show_default="$UNDERSTUDY_PROFILE, or the only one")
]
_Job = Annotated[str | None, typer.Option(help="Of the transactions.", show_default=False)]
_Rm = Annotated[list[str] | None, typer.Option("--rm", help="Only this resource manager; may be repeated.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it. Without this nothing is changed.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def list_transactions(
    config: ConfigFile = DEFAULT_FILE,
    profile: ProfileName = None,
    job: _Job = None,
    rm: _Rm = None,
    as_json: _Json = False,
) -> None:
    """List what the state server knows, and the branches in the resource managers that it does not know (orphans)."""
    with errors_as_exit_codes():
        rows = as_rows(_operator(config, profile, job, rm).look(job or "").of(rm or ()))
    if as_json:
        _print(json.dumps(rows))
        return
    for row in rows["transactions"]:
        _print(_line(row))
    for row in rows["orphans"]:
        _print(f"orphan {row['gid']} in {row['resource']}: {row['xid']}, {row['state']}")
    for name, reason in rows["unreachable"].items():
        _print(f"unreachable {name}: {reason}")
    if not any(rows.values()):
        _print("no transaction is in doubt")


def show(
    gid: _Gid,
    config: ConfigFile = DEFAULT_FILE,
    profile: ProfileName = None,
    job: _Job = None,
    rm: _Rm = None,
    as_json: _Json = False,
) -> None:
    """Show one transaction: its record, and its orphans. Exit code 1 if there is neither."""
    with errors_as_exit_codes():
        rows = as_rows(_operator(config, profile, job, rm).look(job or "").of(rm or ()))
    found: dict[str, Any] = {
        "transaction": next((row for row in rows["transactions"] if row["gid"] == gid), None),
        "orphans": [row for row in rows["orphans"] if row["gid"] == gid],
        "unreachable": rows["unreachable"],
    }
    if found["transaction"] is None and not found["orphans"]:
        narrowed = " under these options" if job or rm else ""
        _fail(f"transaction {gid} is not known to the state server, nor to a resource manager{narrowed}", 1)
    if as_json:
        _print(json.dumps(found))
        return
    for key, value in (found["transaction"] or {}).items():
        _print(f"{key}: {value}")
    for row in found["orphans"]:
        _print(f"orphan in {row['resource']}: {row['xid']}, {row['state']}")


def recover(
    config: ConfigFile = DEFAULT_FILE,
    profile: ProfileName = None,
    job: _Job = None,
    rm: _Rm = None,
    yes: _Yes = False,
    as_json: _Json = False,
) -> None:
    """Complete what a job has left, as the record says: also what is parked since its recovery was refused.

    What was completed by hand against the record, or nobody knows how, is shown, with exit code 1, until it is forgotten.
    With --rm: only transactions that have a branch there. All branches of each of them are completed.
    """
    with errors_as_exit_codes(), contextlib.closing(_operator(config, profile, job, rm)) as operator:
        job = _job(config, profile, job)
        entries = operator.look(job).of(rm or ()).entries
        waiting = [one for one in entries if one.state in ("pending", "parked")]
        if waiting:
            operator.connect()
        done: dict[str, Any] = {one.entry.gid: _kept(one) for one in entries if one.state == "heuristic"}
        for one in _with_progress(waiting):
            verdict = "commit" if one.entry.commit else "rollback"
            try:
                if not yes:
                    operator.check(one, commit=None)
                    done[one.entry.gid] = {"would": verdict}
                    continue
                entry, answers = operator.complete(one.entry.gid, commit=None)
            except XaError as error:
                done[one.entry.gid] = {"failed": str(error)}
            else:
                done[one.entry.gid] = _completed(answers, entry.heuristics, commit=entry.commit)
    _end(done, as_json=as_json, nothing=f"job {job} has nothing to recover")


def commit(
    gid: _Gid,
    config: ConfigFile = DEFAULT_FILE,
    profile: ProfileName = None,
    job: _Job = None,
    rm: _Rm = None,
    yes: _Yes = False,
    allow_missing: Annotated[
        bool,
        typer.Option("--allow-missing", help="Also if a branch is in doubt nowhere, since it has written nothing."),
    ] = False,
    as_json: _Json = False,
) -> None:
    """Commit a transaction by hand: the decision is recorded first. For orphans, commit their branches."""
    _decide(gid, config, profile, job, rm, commit=True, allow_missing=allow_missing, yes=yes, as_json=as_json)


def rollback(
    gid: _Gid,
    config: ConfigFile = DEFAULT_FILE,
    profile: ProfileName = None,
    job: _Job = None,
    rm: _Rm = None,
    yes: _Yes = False,
    as_json: _Json = False,
) -> None:
    """Roll a transaction back by hand; refused if it is decided as commit. For orphans, roll their branches back."""
    _decide(gid, config, profile, job, rm, commit=False, yes=yes, as_json=as_json)


def forget(
    gid: _Gid,
    config: ConfigFile = DEFAULT_FILE,
    profile: ProfileName = None,
    job: _Job = None,
    rm: _Rm = None,
    yes: _Yes = False,
    as_json: _Json = False,
) -> None:
    """Drop the record of a transaction with heuristic completions, when its consequences are dealt with.

    With --rm: only if it has a branch there.
    """
    with errors_as_exit_codes():
        operator = _operator(config, profile, job, rm)
        shown = operator.forgettable(gid)
        if rm and not has_branch(shown.entry, rm):
            raise RefusedError(f"transaction {gid} has no branch in {', '.join(rm)}")
        if yes:
            operator.forget(gid)
    _end({gid: {"done" if yes else "would": "forget"}}, as_json=as_json)


def _decide(
    gid: str,
    config: Path,
    profile: str | None,
    job: str | None,
    rm: list[str] | None,
    *,
    commit: bool,
    allow_missing: bool = False,
    yes: bool,
    as_json: bool,
) -> None:
    with errors_as_exit_codes():
        operator = _operator(config, profile, job, rm)
        shown = operator.entry(gid)
        if shown is not None and shown.state == "ruled":  # a branch of it may still be there
            shown = None
        if shown is not None and rm:
            raise RefusedError(f"transaction {gid} is known to the state server: --rm is for orphans alone")
        if shown is not None:
            operator = _operator(config, profile, shown.entry.job if job is None else job, rm)
        elif not any(one.gid == gid for one in operator.look().orphans):
            raise RefusedError(f"transaction {gid} is not known to the state server, nor to a resource manager")
        if not yes:
            if shown is not None:
                with contextlib.closing(operator):
                    operator.check(shown, commit=commit, allow_missing=allow_missing)
            _end({gid: {"would": "commit" if commit else "rollback"}}, as_json=as_json)
            return
        if shown is not None:
            with contextlib.closing(operator):
                entry, answers = operator.complete(gid, commit=commit, allow_missing=allow_missing)
            done = _completed(answers, entry.heuristics, commit=entry.commit)
        else:
            done = _completed(operator.complete_orphans(gid, commit=commit), {}, commit=commit)
    _end({gid: done}, as_json=as_json)


# -- parts ----------------------------------------------------------------------------------------------------------------


def _operator(config: Path, profile: str | None, job: str | None, rm: list[str] | None) -> Operator:
    return Operator(read_profile(config, profile), _job(config, profile, job), rm or ())


def _job(config: Path, profile: str | None, job: str | None) -> str:
    if job is not None:
        return checked_job(job, "--job")
    return TransactionManager(read_profile(config, profile)).job


def _with_progress(waiting: Sequence[Shown]) -> Iterator[Shown]:
    """Each of them; on long work a line on stderr now and then."""
    next_word = time.monotonic() + PROGRESS_S
    for number, one in enumerate(waiting):
        if time.monotonic() > next_word:
            next_word += PROGRESS_S
            print(f"understudy xa: {number} of {len(waiting)} transactions", file=sys.stderr, flush=True)  # noqa: T201
        yield one


@contextlib.contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Turn an exception of a command into a line on stderr and an exit code: 2 for `ConfigError`, 1 for any other `XaError`."""
    try:
        yield
    except ConfigError as error:
        _fail(str(error), 2)
    except XaError as error:
        _fail(str(error), 1)


def _fail(text: str, code: int) -> None:
    print(f"understudy xa: {text}", file=sys.stderr)  # noqa: T201  # a command prints
    raise typer.Exit(code)


def _print(text: str) -> None:
    """Print one line. Texts of other programs are in it: what a terminal would obey is shown as ``?``."""
    print("".join(one if one.isprintable() else "?" for one in text), flush=True)  # noqa: T201  # as above


def _completed(answers: Mapping[str, Answer], recorded: Mapping[str, int], *, commit: bool) -> dict[str, Any]:
    """The outcome of one transaction: ``done`` or ``failed``, the answers, and what was completed against the verdict.

    Args:
        answers: of the resource managers.
        recorded: heuristic completions that the state server knew before, of which a resource manager knows no more.
        commit: the verdict.
    """
    failed = answered_badly(answers, commit=commit)
    made: dict[str, Any] = {
        "failed" if failed else "done": "commit" if commit else "rollback",
        "answers": {name: str(answer) for name, answer in answers.items()},
    }
    if against := {**recorded, **against_verdict(answers, committed=commit)}:
        made["heuristic"] = {name: code_name(code) for name, code in against.items()}
    return made


def _kept(shown: Shown) -> dict[str, Any]:
    """One that is complete, and waits for people."""
    heuristics = {name: code_name(code) for name, code in shown.entry.heuristics.items()}
    return {"kept": "commit" if shown.entry.commit else "rollback", "heuristic": heuristics}


def _end(done: dict[str, dict[str, Any]], *, as_json: bool, nothing: str = "") -> None:
    """Print what was done with each transaction; exit code 1 if one failed, or has heuristic completions."""
    if as_json:
        _print(json.dumps(done))
    else:
        for line in [_done_line(gid, what) for gid, what in done.items()] or [nothing]:
            _print(line)
    if any("failed" in what or "heuristic" in what for what in done.values()):
        raise typer.Exit(1)


def _done_line(gid: str, what: dict[str, Any]) -> str:
    if "would" in what:
        return f"{gid}: would {what['would']}; give --yes to do it"
    if "failed" in what:
        text = f"failed: {what['failed']}"
    else:
        text = f"{what['done']}: done" if "done" in what else f"kept, decided as {what['kept']}"
    if "heuristic" in what:
        hazards = ", ".join(
            f"in {name} ({code})" for name, code in what["heuristic"].items() if code == XaCode.HEURHAZ.name
        )
        by_hand = ", ".join(
            f"in {name} ({code})" for name, code in what["heuristic"].items() if code != XaCode.HEURHAZ.name
        )
        text += f", but completed by hand {by_hand}" if by_hand else ""
        text += f", but nothing tells how the branch ended {hazards}" if hazards else ""
        text += f": deal with it, then `understudy xa forget {gid}`"
    told = "; ".join(f"{name} {answer}" for name, answer in what.get("answers", {}).items())
    return f"{gid}: {text}{f' ({told})' if told else ''}"


def _line(row: dict[str, Any]) -> str:
    if row["ruled"]:
        done = "; ".join(f"{branch}: {what}" for branch, what in row["ruled"].items())
        return f"{row['state']} {row['gid']} {row['reason']}, {row['age_s']:.0f} s ago: {done}"
    decision = f", decided as {row['decision']}" if row["decision"] else ""
    heuristics = ", ".join(f"{name} {code}" for name, code in row["heuristics"].items())
    text = f"{row['state']} {row['gid']}{decision}, job {row['job']}, {', '.join(row['resources'])}, {row['age_s']:.0f} s old"
    if row["attempts"]:
        text += f", {row['attempts']} recoveries failed: {row['reason']}"
    return f"{text}, heuristic: {heuristics}" if heuristics else text
