"""The examples of docs/xa.md run as they stand there, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.xa_place import running_place
from understudy.xa.core.profile import profile_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

DOC = Path(__file__).parents[2] / "docs" / "xa.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOC.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_profile_can_be_read() -> None:
    (text,) = blocks("toml")
    assert [one.name for one in profile_of(text, "shop", "xa.toml").resources] == ["bank", "queues"]


def test_the_examples_do_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_place(tmp_path) as place:
        monkeypatch.chdir(tmp_path)
        bank = place.opened("bank")
        bank.resource.execute("CREATE TABLE account (id int PRIMARY KEY, balance int)")
        bank.resource.execute("CREATE TABLE audit (text text)")
        bank.resource.execute("INSERT INTO account VALUES (1, 100), (2, 0)")
        bank.resource.commit()
        examples = blocks("python")
        assert len(examples) == 5
        names: dict[str, object] = {}
        balances = ([(1, 90), (2, 0)], [(1, 90), (2, 10)], [(1, 89), (2, 10)], [(1, 80), (2, 10)], [(1, 80), (2, 10)])
        for example, wanted in zip(examples, balances, strict=True):
            exec(example.replace("127.0.0.1:5672", f"127.0.0.1:{place.broker.port}"), names)
            assert bank.resource.execute("SELECT id, balance FROM account ORDER BY id").fetchall() == wanted
            bank.resource.commit()
        assert bank.resource.execute("SELECT count(*) FROM audit").fetchone() == (1,)
        bank.close()
        assert place.in_doubt() == {"bank": [], "queues": []}
        assert place.entries() == []
