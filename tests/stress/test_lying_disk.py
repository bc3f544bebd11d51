"""A disk loses what it had synced: the newest segment, or all from some octet on. What others hold of it is kept (decision 0028).

All brokers are killed after 20,000 confirms, one loses the end of its journal, and it is started first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.broker_process import wait_until
from tests.stress.clients import Finder, declare, read_queue
from tests.stress.confirmer import Confirmer
from tests.stress.group import GroupBroker, running_group

pytestmark = [pytest.mark.stress, pytest.mark.timeout(240)]

MESSAGES = 20_000
SMALL_SEGMENTS = "[journal]\nsegment_bytes = '1MiB'\n"
ZEROED_FROM = 200_000


def newest_segment(broker: GroupBroker) -> Path:
    return max(broker.data.glob("*.journal"))


def delete_newest(broker: GroupBroker) -> None:
    newest_segment(broker).unlink()


def zero_newest(broker: GroupBroker) -> None:
    """Its blocks are still there, and hold nothing."""
    path = newest_segment(broker)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(ZEROED_FROM)
        file.write(bytes(size - ZEROED_FROM))
        os.fsync(file.fileno())


@pytest.mark.parametrize("lose", [delete_newest, zero_newest], ids=["deleted", "zeroed"])
def test_what_the_others_hold_is_kept(tmp_path: Path, lose: Callable[[GroupBroker], None]) -> None:
    with running_group(tmp_path, SMALL_SEGMENTS) as group:
        first = group.primary()
        finder = Finder(group.ports)
        declare(finder, ["kept"])
        stream = Confirmer("s", first.port, "kept", total=MESSAGES, window=1_000)
        stream.start()
        stream.join()
        assert len(stream.confirmed) == MESSAGES
        group.kill_all()
        lose(first)
        group.start(first.name)
        wait_until(f"{first.name} answers", lambda: first.row()["status"] != "down", 60.0)
        others = [name for name in group.brokers if name != first.name]
        group.start(*others)
        group.ready()
        assert group.primary() is not first
        stream.check(read_queue(finder, "kept"))
        assert group.agree()["kept"][0] == MESSAGES
