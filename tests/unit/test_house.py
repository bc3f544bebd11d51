"""``scripts/check --house``: what it counts, on files that are made."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from scripts.house_tools.counts import circles, count
from scripts.house_tools.ha_words import has_word
from scripts.house_tools.sources import Source, added_lines, begins_without_a_noun, read_sources


def source(path: str, text: str) -> Source:
    return Source(Path(path), text, ast.parse(text))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What it does.", True),
        ("Who may come in", True),
        ("It's there.", True),
        ("That, which", True),
        ("Whatever comes.", True),
        ("A queue.", False),
        ("Return the sum.", False),
        ("Items of a queue.", False),
        ("Whatsoever.", False),
    ],
)
def test_a_docstring_without_a_noun_is_known(text: str, found: bool) -> None:
    assert begins_without_a_noun(text) is found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("the in-sync set, min_insync", True),
        ("on_backup = 1", True),
        ("Primaries lead.", True),
        ("class HaConfig:", True),
        ("plugins.ha", True),
        ("begin_sync(), what has changed", False),
        ("a catch, a primal back-up of hay", False),
    ],
)
def test_a_word_of_the_ha_plugin_is_known(line: str, found: bool) -> None:
    assert has_word(line) is found


def test_circles_are_found_and_chains_are_none() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"], "e": ["f"], "f": ["e", "a"]}) == [
        ["a", "b", "c"],
        ["e", "f"],
    ]
    assert circles({"a": ["b"], "b": ["c"], "c": []}) == []
    long = {str(n): [str(n + 1)] for n in range(5_000)} | {"5000": ["0"]}
    assert [len(each) for each in circles(long)] == [5_001]


def test_the_house_is_counted() -> None:
    queue = 'class Queue:\n    """It holds (P-52)."""\n    size: int\n    def __init__(self):\n        self.head = 0\n'
    broker = (
        "# A primary.\n"
        "from understudy.broker.core.queues.queue import Queue\n"
        "class Broker:\n    def take(self, queue: Queue):\n        queue.head = 1\n        self.size = 2  # of a backup\n"
        "        self.refill = ''  # refill\n"
    )
    user = "from understudy.broker.core.broker import Broker\ndef f(q):\n    q.size, q.unknown = 1, 2\n"
    test = '"""Whether it counts."""\n'
    house = count(
        [
            source("broker/core/queues/queue.py", queue + "from understudy.broker.core import broker\n"),
            source("broker/core/broker.py", broker),
            source("ha/user.py", user),
            source("tests/unit/test_x.py", test),
        ],
        {"a.md": "As DESIGN 5, H-36 and P-53 say.", "requirements.md": "- **P-53** a rule"},
    )
    assert house.rooms == {"broker.core.queues": 1, "broker.core": 1, "ha": 1}
    assert house.circles == [["broker.core", "broker.core.queues"]]
    assert house.circled_files == 2
    assert house.foreign_writes == ["head (broker/core/broker.py)", "size (ha/user.py)"]
    assert (house.docstrings, house.nounless) == ({"product": 1, "tests": 1}, {"product": 1, "tests": 1})
    assert house.ha_words == {"broker/core/broker.py": (2, 1)}
    assert house.ids == {"product": 1, "tests": 0, "docs": 2}


def test_lines_that_a_change_adds(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a.py").write_text("one = 1\ntwo = 2\n")
    git("add", "a.py")
    git("commit", "-q", "-m", "a")
    (tmp_path / "a.py").write_text("one = 1\nnew = 3\ntwo = 2\nlast = 4\n")
    (tmp_path / "b.py").write_text("x = 1\ny = 2\n")
    assert added_lines(tmp_path, "HEAD") == {"a.py": {2, 4}, "b.py": {1, 2}}
    assert [str(each.path) for each in read_sources(tmp_path)] == ["a.py", "b.py"]
    with pytest.raises(subprocess.CalledProcessError):
        added_lines(tmp_path, "nowhere")
