"""A rolling upgrade of real brokers under load: the backups, a step-down, the former primary. Nothing is lost; no way back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.broker_process import wait_until
from tests.stress.group import Group, GroupBroker, running_group
from tests.stress.load import Books, Load
from tests.stress.operator import order
from understudy.broker.log.record import FORMAT_VERSION

pytestmark = [pytest.mark.stress, pytest.mark.timeout(240)]

NEXT_FORMAT = FORMAT_VERSION + 1
NEXT_PROGRAM = Path(__file__).with_name("next_broker.py")


class UpgradableBroker(GroupBroker):
    """One that can be started with the next version of the program."""

    upgraded = False

    def spawn(self) -> subprocess.Popen[bytes]:
        if not self.upgraded:
            return super().spawn()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, NEXT_PROGRAM, self.config], stderr=log, cwd=self.folder)
        return self.process


class UpgradableGroup(Group):
    broker_class = UpgradableBroker


def upgrade(group: Group, broker: GroupBroker) -> None:
    """SIGTERM, the next version, and all are ready again."""
    assert isinstance(broker, UpgradableBroker)
    assert broker.stop() == 0
    broker.upgraded = True
    group.start(broker.name)
    group.ready(*group.brokers)


def raised(group: Group) -> list[str]:
    """The lines in which a primary says that it goes on to the newer program's record format."""
    return [
        line for line in group.logs().splitlines() if "log format" in line and f"record_format={NEXT_FORMAT}" in line
    ]


def test_backups_first_then_the_primary(tmp_path: Path) -> None:
    with running_group(tmp_path, group_class=UpgradableGroup) as group:
        load = Load(group.ports, movers=4)
        load.declare()
        with load.running():
            load.wait_busy()
            first = group.primary()
            for backup in group.backups():
                upgrade(group, backup)
                load.wait_committed(30)
                assert group.primary() is first
                assert not raised(group), "the primary is of the older program"
                assert first.row()["record_format"] == FORMAT_VERSION
            # The primary hands over, and follows a primary of the newer program in the older format until it is upgraded.
            leader = order(group, "step-down")["primary"]
            group.ready(*group.brokers)
            load.wait_committed(30)
            assert not raised(group), "a broker of the older program is in the set"
            upgrade(group, first)
            assert group.primary().name == leader != first.name
            wait_until("the newer format is written", lambda: raised(group))
            load.wait_committed(60)
            assert group.primary().row()["record_format"] == NEXT_FORMAT
        group.settled()
        group.agree()
        books = Books(load)
        books.resolve(load.finder)
        books.check(books.read(load.finder))
        # No way back, once something of the newer format is in the journal: refused at the start, and nothing is changed.
        backup = group.backups()[0]
        assert isinstance(backup, UpgradableBroker)
        assert backup.stop() == 0
        backup.upgraded = False
        process = backup.spawn()
        assert process.wait(60) == 1, backup.log_text()
        assert "record kind 99 at byte " in backup.log_text()
        assert "Nothing was changed; run the newer program" in backup.log_text()
        backup.upgraded = True
        group.start(backup.name)
        group.ready(*group.brokers)
        books.check(books.read(load.finder))
