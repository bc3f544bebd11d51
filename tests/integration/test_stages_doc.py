"""The tutorial of docs/stages.md works when it is pasted."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.broker_process import PROGRAM, running_broker, wait_until

pytestmark = [pytest.mark.integration]

DOC = (Path(__file__).parents[2] / "docs" / "stages.md").read_text(encoding="utf-8")
TIMEOUT_S = 60.0


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    tables, shop, order, called, tested = re.findall(r"^```python\n(.*?)^```", DOC, re.DOTALL | re.MULTILINE)
    commands = re.findall(r"^```\n(pip install.*?)^```", DOC, re.DOTALL | re.MULTILINE)[0].splitlines()
    assert [line.split()[0] for line in commands] == ["pip", "understudy", "python", "understudy", "python", "python"]

    def run(line: str) -> str:
        words = [sys.executable, *shlex.split(line)[1:]]
        return subprocess.run(words, cwd=tmp_path, timeout=TIMEOUT_S, check=True, capture_output=True, text=True).stdout

    place = tmp_path / "broker"
    place.mkdir()
    with running_broker(place) as broker:
        shop = re.sub(r'"amqp://[^"]+"', f'"amqp://127.0.0.1:{broker.port}/"', shop)
        for name, text in (
            ("tables", tables),
            ("shop", shop),
            ("order", order),
            ("called", called),
            ("test_shop", tested),
        ):
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        run(commands[2])
        words = shlex.split(commands[3].partition("#")[0])[1:]
        with (tmp_path / "worker.log").open("wb") as log:
            worker = subprocess.Popen([PROGRAM, *words], cwd=tmp_path, stderr=log)
        try:
            run(commands[4])
            told = wait_until("the order is charged", lambda: run(commands[5]).strip(), TIMEOUT_S)
        finally:
            worker.terminate()
            assert worker.wait(TIMEOUT_S) == 0, (tmp_path / "worker.log").read_text(encoding="utf-8")
    assert told == re.findall(r"^The last line prints `(.*?)`", DOC, re.MULTILINE)[0]
    run("python called.py")
    assert "2 passed" in run("python -m pytest -q test_shop.py")


def test_a_wrong_application_is_named_and_ends_with_code_2(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from understudy.client.stages import Stages\n"
        "stages = Stages('shop', broker='amqp://127.0.0.1/')\n"
        "@stages.stage('reserve', once=True)\n"
        "def reserve(order: int) -> None: ...\n",
        encoding="utf-8",
    )
    for words, text in (
        (["shop:stages"], "stage 'reserve' has once=True, which needs a database"),
        (["shop:stages", "--processes", "2"], "stage 'reserve' has once=True, which needs a database"),
        (["shop:other"], "shop:other: 'other' is missing, not a Stages"),
        (["other:stages"], "there is no module 'other'"),
        (["shop"], "'shop' names no application"),
    ):
        done = subprocess.run(
            [PROGRAM, "stages", "run", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert (done.returncode, text in done.stderr) == (2, True), (words, done.stderr)
