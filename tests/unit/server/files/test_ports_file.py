"""``ports.json``: replaced as a whole, and not what a start fails for."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from understudy.broker.server.files.ports_file import PORTS_NAME, read_ports, write_ports


def full_while(monkeypatch: pytest.MonkeyPatch, path: Path, *, always: bool = False) -> None:
    """The disk is full as long as ``path`` is there, or ``always``."""
    real = Path.write_text

    def write_text(self: Path, text: str, *arguments: Any, **options: Any) -> int:
        if not always and not path.exists():
            return real(self, text, *arguments, **options)
        self.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", write_text)


def test_it_is_replaced(tmp_path: Path) -> None:
    for port in (1, 2):
        assert write_ports(tmp_path, {"amqp": port})
        assert read_ports(tmp_path) == {"amqp": port}
    assert [path.name for path in tmp_path.iterdir()] == [PORTS_NAME]


def test_on_a_full_disk_the_old_one_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose disk was full could not be started again: not even to hand out what made it full."""
    assert write_ports(tmp_path, {"amqp": 1})
    full_while(monkeypatch, tmp_path / PORTS_NAME)
    assert write_ports(tmp_path, {"amqp": 2})
    assert read_ports(tmp_path) == {"amqp": 2}


def test_a_disk_that_is_too_full_even_so_leaves_nothing_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert write_ports(tmp_path, {"amqp": 1})
    full_while(monkeypatch, tmp_path, always=True)
    assert not write_ports(tmp_path, {"amqp": 2})
    assert list(tmp_path.iterdir()) == []
