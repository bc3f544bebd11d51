"""The examples of docs/xa.md run as they stand there, one after the other."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import amqp
import pytest

from tests.integration.xa_place import QUEUE, Place, forked, running_place
from understudy.xa import tpc
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
        leave_prepared(place, "order 18")
        names: dict[str, object] = {"__name__": "__main__"}
        for example, balances in zip(blocks("python"), BALANCES, strict=True):
            text = example.replace("127.0.0.1:5672", f"127.0.0.1:{place.broker.port}")
            exec(compile(text, str(DOC), "exec", dont_inherit=True), names)
            assert bank.resource.execute("SELECT balance FROM account ORDER BY id").fetchall() == balances
            bank.resource.commit()
        assert bank.resource.execute("SELECT count(*) FROM audit").fetchone() == (1,)
        bank.close()
        assert place.in_doubt() == {"bank": [], "queues": []}
        assert place.entries() == []
        queues = place.opened("queues")
        bodies = [message.body for message in iter(lambda: queues.resource.basic_get(QUEUE, no_ack=True), None)]
        queues.close()
        assert bodies == ["5 to account 2"] * 3 + ["paid", "order 18"]


BALANCES = [
    [(90,), (0,)],  # the transfer
    [(90,), (10,)],  # the other way round
    [(89,), (10,)],  # suspended
    [(80,), (10,)],  # asyncio
    [(75,), (10,)],  # transaction
    [(70,), (10,)],  # a session
    [(65,), (10,)],  # two-phase sessions
    [(65,), (10,)],  # PEP 249
    [(65,), (10,)],  # and what is listed
]


def leave_prepared(place: Place, order: str) -> None:
    """A program prepares a transaction, and is killed."""

    def prepares() -> None:
        connection = tpc.connect([f"127.0.0.1:{place.broker.port}"])
        connection.tpc_begin(connection.xid(1, order, "queues"))
        message = amqp.Message(order, delivery_mode=2)
        connection.channel.basic_publish(message, exchange="", routing_key=QUEUE)
        connection.tpc_prepare()
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(prepares) == -signal.SIGKILL
