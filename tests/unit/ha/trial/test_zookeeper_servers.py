"""The jars of ZooKeeper in the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy.ha.trial.edge import zookeeper_servers
from understudy.ha.trial.edge.java_servers import ServersError
from understudy.ha.trial.edge.zookeeper_servers import JARS_VARIABLE, VERSION, find_jars


def test_jars_in_the_cache_are_verified_at_each_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(JARS_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "understudy" / f"zookeeper-{VERSION}"
    cache.mkdir(parents=True)
    jar = cache / "one.jar"
    jar.write_bytes(b"one")
    digest = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
    monkeypatch.setattr(zookeeper_servers, "SHA256", f"{digest}  one.jar\n")
    assert find_jars() == cache
    jar.write_bytes(b"another")
    with pytest.raises(ServersError, match=rf"not those that are pinned: one\.jar: remove {cache}"):
        find_jars()
    jar.write_bytes(b"one")
    (cache / "two.jar").touch()
    with pytest.raises(ServersError, match=r"two\.jar"):
        find_jars()
