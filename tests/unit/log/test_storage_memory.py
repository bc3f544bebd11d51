"""The simulator's disk: it must lose what it may lose, keep what it must keep, and do the same again for the same seed."""

from __future__ import annotations

from random import Random

import pytest

from understudy.broker.log.storage import Storage, StorageFullError
from understudy.testing.disk import MemoryStorage, PowerCutError


def test_it_is_a_storage() -> None:
    storage: Storage = MemoryStorage("x")
    assert str(storage) == "x"
    with storage.lock():
        assert storage.names() == []


def make(size: int = 4096) -> MemoryStorage:
    storage = MemoryStorage()
    storage.create("f", size)
    storage.sync_directory()
    return storage


def test_synced_writes_survive_every_crash() -> None:
    for seed in range(50):
        storage = make()
        file = storage.open("f")
        file.write([b"a" * 600, b"b" * 600], 100)
        file.sync()
        file.write([b"c" * 1000], 2000)
        storage.crash(Random(seed))
        content = storage.content("f")
        assert content[:1300] == bytes(100) + b"a" * 600 + b"b" * 600
        assert set(content[2000:3000]) <= {0, ord("c")}
        assert not any(content[3000:])


def test_every_kind_of_loss_happens() -> None:
    """None, all, a hole, and a torn sector; old bytes under an overwrite come back."""
    seen = set()
    for seed in range(300):
        storage = make()
        file = storage.open("f")
        file.write([b"o" * 2048], 0)
        file.sync()
        file.write([b"n" * 2048], 0)
        storage.crash(Random(seed))
        content = storage.content("f")[:2048]
        assert set(content) <= {ord("o"), ord("n")}
        sectors = [content[at : at + 512] for at in range(0, 2048, 512)]
        torn = [sector for sector in sectors if len(set(sector)) > 1]
        assert len(torn) <= 1
        shape = "".join("t" if len(set(sector)) > 1 else chr(sector[0]) for sector in sectors)
        seen.add(shape)
    assert {"oooo", "nnnn", "nooo", "onnn"} <= seen
    assert any("t" in shape for shape in seen)


def test_equal_seeds_give_equal_disks() -> None:
    def run(seed: int) -> tuple[list[str], bytes]:
        storage = make()
        storage.open("f").write([bytes(range(256)) * 8], 300)
        storage.create("g", 512)
        storage.rename("g", "h")
        storage.crash(Random(seed))
        return sorted(storage.names()), storage.content("f")

    assert [run(seed) for seed in range(20)] == [run(seed) for seed in range(20)]
    assert len({str(run(seed)) for seed in range(20)}) > 3


def test_names_are_lost_and_kept() -> None:
    seen = set()
    for seed in range(200):
        storage = make()
        storage.create("g", 512)
        storage.rename("f", "h")
        storage.remove("h")
        storage.crash(Random(seed))
        seen.add(tuple(sorted(storage.names())))
    assert seen == {("f",), ("f", "g"), ("h",), ("g", "h"), (), ("g",)}
    storage = make()
    storage.create("g", 512)
    storage.sync_directory()
    storage.crash(Random(1))
    assert sorted(storage.names()) == ["f", "g"]


def test_a_soft_crash_keeps_everything_unsynced_still() -> None:
    storage = make()
    storage.open("f").write([b"x" * 512], 0)
    storage.crash_soft()
    assert storage.content("f")[:512] == b"x" * 512
    storage.crash_keeping(())
    assert storage.content("f")[:512] == bytes(512)


def test_old_handles_are_dead() -> None:
    storage = make()
    file = storage.open("f")
    storage.crash_soft()
    with pytest.raises(AssertionError, match="before the crash"):
        file.write([b"x"], 0)


def test_a_failed_sync_looks_kept_and_is_lost() -> None:
    storage = make()
    file = storage.open("f")
    file.write([b"a" * 512], 0)
    storage.failing_syncs = 1
    with pytest.raises(OSError, match="simulated"):
        file.sync()
    file.write([b"b" * 512], 512)
    file.sync()
    assert storage.content("f")[:1024] == b"a" * 512 + b"b" * 512
    storage.crash(Random(1))
    assert storage.content("f")[:1024] == bytes(512) + b"b" * 512


def test_power_cut_between_operations() -> None:
    storage = make()
    file = storage.open("f")
    storage.power_cut_in = 1
    file.write([b"x"], 0)
    for _ in range(2):
        with pytest.raises(PowerCutError):
            file.sync()
    with pytest.raises(PowerCutError):
        storage.create("half", 1000)
    assert len(storage.content("half")) == 500
    storage.crash_soft()
    storage.open("f").sync()


def test_full() -> None:
    storage = make()
    storage.full = True
    assert storage.free_bytes() == 0
    with pytest.raises(StorageFullError, match="no room for g of 1 bytes"):
        storage.create("g", 1)
    storage.remove("f")
    storage.create("g", 4096)
    assert storage.full
    storage.full = False
    storage.create("h", 1 << 20)


def test_damage_and_clones() -> None:
    storage = make()
    storage.open("f").write([b"x" * 10], 0)
    copy = storage.clone()
    storage.flip_bit("f", 3, 0)
    storage.truncate("f", 5)
    assert storage.content("f") == b"xxxyx"
    assert copy.content("f")[:10] == b"x" * 10
    copy.crash_keeping(())
    assert not any(copy.content("f"))
    assert storage.faults == 2
