"""Modules that a process loads before it works: their loading delays the return of a killed broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from understudy.broker.server.__main__ import run

HEAVY = ("rich", "prometheus_client", "typer", "pydantic", "kazoo", "pyarrow")


def loaded(code: str) -> set[str]:
    """Top-level packages that a new process has after ``code``."""
    program = f"import sys\n{code}\nprint(*(name for name, each in sys.modules.items() if each and '.' not in name))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_a_broker_starts_without_what_draws_or_is_scraped(tmp_path: Path) -> None:
    assert not loaded("import understudy.broker.server.__main__").intersection(HEAVY)
    code = (
        f"from understudy.broker.start import main; sys.argv = ['understudy', 'serve', '--config', '{tmp_path}/absent.toml']\n"
        "try: main()\nexcept SystemExit as end: assert end.code == 78, end.code"
    )
    assert not loaded(code).intersection(HEAVY)


@pytest.mark.parametrize(
    ("option", "code", "said"), [("--help", 0, "78 the configuration"), ("-h", 2, "No such option: -h")]
)
def test_help_is_that_of_all_commands(option: str, code: int, said: str) -> None:
    program = (
        f"import sys; sys.argv = ['understudy', 'serve', {option!r}]\nfrom understudy.broker.start import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "the following arguments are required: --config"),
        (("--config", "b1.toml", "--log-format", "xml"), "argument --log-format: invalid choice: 'xml'"),
        (("--config", "b1.toml", "--log-level", "loud"), "argument --log-level: invalid choice: 'loud'"),
        (("--config", "b1.toml", "--supervised"), "unrecognized arguments: --supervised"),
    ],
)
def test_options_of_a_broker_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as end:
        run("understudy serve", options)
    assert (end.value.code, f"understudy serve: error: {said}" in capsys.readouterr().err) == (2, True)


def test_a_plugin_may_use_rich() -> None:
    names = loaded("import understudy.broker.server.__main__, rich.text, structlog\nassert structlog.dev.rich is None")
    assert {"rich", "structlog"} <= names


@pytest.mark.parametrize(
    ("words", "there", "absent"),
    [
        ("feed", "understudy.observers.feed.edge.command", "understudy.ha.trial.edge.cluster_command"),
        ("journal", "understudy.observers.journal.edge.commands", "understudy.ha.trial.edge.cluster_command"),
        ("--help", "understudy.ha.trial.edge.cluster_command", "understudy.none"),
    ],
)
def test_a_command_loads_itself_alone(words: str, there: str, absent: str) -> None:
    program = (
        f"import sys; sys.argv = ['understudy', {words!r}, '--help']\nfrom understudy.broker.cli import main\n"
        f"try: main()\nexcept SystemExit as end: assert not end.code\nassert {there!r} in sys.modules\n"
        f"assert {absent!r} not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    listed = {
        "journal": ("check", "dump", "stats"),
        "--help": ("serve", "cluster", "feed", "xa"),
        "feed": ("--follow",),
    }
    assert all(each in done.stdout for each in listed[words])
