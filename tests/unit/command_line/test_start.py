"""What a process loads before it works: a broker that is started again after a kill is away as long as that takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("rich", "prometheus_client", "typer", "kazoo", "pyarrow")


def loaded(code: str) -> set[str]:
    """Top-level packages that a new process has after ``code``."""
    program = f"import sys\n{code}\nprint(*(name for name, each in sys.modules.items() if each and '.' not in name))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_a_broker_starts_without_what_draws_or_is_scraped() -> None:
    assert not loaded("import understudy.broker.server.__main__").intersection(HEAVY)


def test_a_plugin_may_use_rich() -> None:
    names = loaded("import understudy.broker.server.__main__, rich.text, structlog\nassert structlog.dev.rich is None")
    assert {"rich", "structlog"} <= names


@pytest.mark.parametrize(
    ("words", "there", "absent"),
    [
        ("feed", "understudy.observers.feed_command", "understudy.ha.cluster_command"),
        ("journal", "understudy.observers.journal_commands", "understudy.ha.cluster_command"),
        ("--help", "understudy.ha.cluster_command", "understudy.none"),
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
