"""Files of brokers and of their store are for their user alone, whatever the umask, and what others may reach is said at the start.

Any user who may read the store may lock it, and a lock of it holds off the next primary.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.broker_process import BrokerProcess, running_broker
from tests.integration.cluster_process import running_cluster
from tests.stress.clients import Finder, declare

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

STORE = {"coordination.db", "coordination.db-wal", "coordination.db-shm"}
OF_A_CLUSTER = STORE | {"b1.toml", "b2.toml", "b1.log", "b2.log", "link.secret", "LOCK"}
OF_A_BROKER = {"LOCK", "RESERVE", "ports.json", "link.sock", "0000000000000001.journal"}
SECRET = '[link]\nsecret = "known to the group alone"\n'


@pytest.fixture
def umask_of_none() -> Iterator[None]:
    """New files get all the permissions that their maker asks for."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def reached() -> Iterator[Path]:
    """A directory that all users of this machine may come to; pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="understudy-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def modes(folder: Path) -> dict[str, str]:
    """Of all that is there, `folder` included: path to type and permissions."""
    paths = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): stat.filemode(path.lstat().st_mode) for path in paths}


def not_private(folder: Path) -> dict[str, str]:
    private = {"drwx------", "-rw-------", "srw-------"}
    return {path: mode for path, mode in modes(folder).items() if mode not in private}


@pytest.mark.usefixtures("umask_of_none")
def test_nobody_else_may_open_a_file_of_a_cluster(tmp_path: Path) -> None:
    with running_cluster(tmp_path, brokers=2) as cluster:
        declare(Finder([cluster.port]), ["jobs"])
        found = {path.name for path in cluster.data.iterdir() if not path.is_dir()}
        assert found >= OF_A_CLUSTER
        for broker in ("b1", "b2"):
            assert {path.name for path in (cluster.data / broker).iterdir()} >= OF_A_BROKER
        assert not_private(cluster.data) == {}
        cluster.stop()
        assert not_private(cluster.data) == {}


@pytest.mark.usefixtures("umask_of_none")
def test_directories_that_are_made_for_it_are_private_and_others_stay(reached: Path) -> None:
    reached.chmod(0o777)
    store = '[plugins]\nha = true\n[ha]\nfound = true\n[coordination]\npath = "deep/store/coordination.db"\n[link]\nport = 0\n'
    with running_broker(reached, store):
        assert not_private(reached / "deep") == {}
        assert not_private(reached / "data") == {}
        assert {path.name for path in (reached / "deep" / "store").iterdir()} == STORE
    assert stat.S_IMODE(reached.stat().st_mode) == 0o777


def test_what_others_may_reach_is_said_at_the_start(reached: Path) -> None:
    """And left as it is: an operator may have meant it."""
    broker = BrokerProcess(reached, SECRET)
    broker.data.mkdir()
    broker.data.chmod(0o755)
    broker.config.chmod(0o644)
    broker.start()
    try:
        said = broker.log_text()
        assert f"path={broker.config} mode=0644 mend='chmod 600 {broker.config}'" in said
        assert f"path={broker.data} mode=0755 mend='chmod 700 {broker.data}'" in said
        assert stat.S_IMODE(broker.config.stat().st_mode) == 0o644
        assert broker.stop() == 0
        broker.data.chmod(0o700)
        broker.config.chmod(0o600)
        broker.start()
        assert "others on this machine" not in broker.log_text()[len(said) :]
    finally:
        assert broker.stop() == 0


def test_a_store_that_others_may_lock_is_said_at_the_start(reached: Path) -> None:
    """A store of an earlier version may be locked by others."""
    text = '[plugins]\nha = true\n[ha]\nfound = true\n[coordination]\npath = "coordination.db"\n[link]\nport = 0\n'
    broker = BrokerProcess(reached, text)
    store = reached / "coordination.db"
    store.touch()
    store.chmod(0o644)
    broker.start()
    try:
        assert f"path={store} mode=0644 mend='chmod 600 {store}'" in broker.log_text()
    finally:
        assert broker.stop() == 0
