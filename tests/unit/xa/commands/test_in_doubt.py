"""Output of a command of ``understudy xa`` that has completed a transaction."""

from __future__ import annotations

import json

import pytest
import typer

from understudy.xa.commands.in_doubt import _completed, _end, _kept, _print
from understudy.xa.commands.operator import Found, as_rows
from understudy.xa.core.codes import OK, Answer, XaCode
from understudy.xa.core.register.entry import Entry
from understudy.xa.core.register.wire import Shown


@pytest.mark.parametrize(
    ("answers", "recorded", "commit", "heuristic"),
    [
        ({"bank": OK, "queues": Answer(XaCode.HEURRB)}, {}, True, {"queues": "HEURRB"}),
        ({"bank": Answer(XaCode.NOTA), "queues": OK}, {"bank": 6}, True, {"bank": "HEURRB"}),
        ({"queues": Answer(XaCode.HEURHAZ)}, {"bank": 7}, False, {"bank": "HEURCOM", "queues": "HEURHAZ"}),
    ],
)
def test_what_was_completed_against_the_verdict_is_named(
    capsys: pytest.CaptureFixture[str],
    answers: dict[str, Answer],
    recorded: dict[str, int],
    commit: bool,
    heuristic: dict[str, str],
) -> None:
    done = {"g1": _completed(answers, recorded, commit=commit)}
    with pytest.raises(typer.Exit) as end:
        _end(done, as_json=True)
    assert (end.value.exit_code, json.loads(capsys.readouterr().out)["g1"]["heuristic"]) == (1, heuristic)
    with pytest.raises(typer.Exit):
        _end(done, as_json=False)
    said = capsys.readouterr().out
    assert all(f"in {name} ({code})" in said for name, code in heuristic.items())
    assert "deal with it, then `understudy xa forget g1`" in said


def test_recover_ends_with_1_while_a_hazard_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    entry = Entry("g1", "j", "p", "f", ["bank"], 1, commit=True, heuristics={"bank": int(XaCode.HEURHAZ)})
    with pytest.raises(typer.Exit) as end:
        _end({"g1": _kept(Shown(entry, "heuristic", 0))}, as_json=False)
    assert end.value.exit_code == 1
    told = "kept, decided as commit, but nothing tells how the branch ended in bank (HEURHAZ): deal with it, then"
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answers", "commit"),
    [
        ({"bank": OK, "queues": Answer(XaCode.HEURCOM)}, True),
        ({"bank": Answer(XaCode.NOTA), "queues": Answer(XaCode.HEURRB)}, False),
    ],
)
def test_what_agrees_with_the_verdict_is_done(
    capsys: pytest.CaptureFixture[str], answers: dict[str, Answer], commit: bool
) -> None:
    _end({"g1": _completed(answers, {}, commit=commit)}, as_json=False)
    assert capsys.readouterr().out.startswith(f"g1: {'commit' if commit else 'rollback'}: done (")


def test_a_code_of_another_version_is_shown_and_ends_no_list() -> None:
    """An older server has taken any number. ``xa list`` and ``show`` then ended with a traceback, for all users."""
    entry = Entry(
        gid="g1", job="j", profile="p", fingerprint="f", resources=["bank"], began_ms=1, heuristics={"bank": 99, "q": 6}
    )
    (row,) = as_rows(Found([Shown(entry, "heuristic", 0)], 2, [], {}))["transactions"]
    assert row["heuristics"] == {"bank": "code 99", "q": "HEURRB"}
    assert _completed({}, {"bank": 99}, commit=True)["heuristic"] == {"bank": "code 99"}


def test_a_text_of_another_program_rules_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _print("reason: \x1b[2Jdown\nnothing is in doubt")
    assert capsys.readouterr().out == "reason: ?[2Jdown?nothing is in doubt\n"


def test_what_is_not_completed_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as end:
        _end({"g1": _completed({"bank": Answer(XaCode.RMFAIL, "gone")}, {}, commit=True)}, as_json=False)
    assert (end.value.exit_code, capsys.readouterr().out.startswith("g1: failed: commit")) == (1, True)
