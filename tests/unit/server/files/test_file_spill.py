"""Bodies of large transactions in files without a name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog.testing

from tests.unit.open_files import open_files_in
from understudy.broker.message import Message
from understudy.broker.server.files.file_spill import FileSpill


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[FileSpill]:
    spill = FileSpill(tmp_path)
    yield spill
    spill.close()


MESSAGE = Message("", "q", b"", b"", True)


def body(number: int) -> bytes:
    return b"%d " % number + bytes([number % 251]) * (number * 37 % 5_000)


def test_each_body_comes_back_and_no_name_is_left(tmp_path: Path) -> None:
    spill = FileSpill(tmp_path, file_bytes=100_000)
    kept = [spill.put(body(number)) for number in range(200)]
    assert list(tmp_path.iterdir()) == [], "a crash must leave nothing behind"
    for number in reversed(range(200)):
        one = kept[number]
        assert one is not None
        assert one.read(MESSAGE) == body(number)
    assert spill.live_bytes == sum(len(body(number)) for number in range(200))
    spill.close()


def test_a_file_goes_with_its_last_body(tmp_path: Path) -> None:
    spill = FileSpill(tmp_path, file_bytes=1_000)
    kept = [spill.put(bytes(600)) for _ in range(10)]  # two to a file
    assert open_files_in(tmp_path) == 5
    del kept[0]
    assert open_files_in(tmp_path) == 5, "its neighbour is still there"
    del kept[0]
    assert open_files_in(tmp_path) == 4
    last = kept.pop()
    kept.clear()
    assert open_files_in(tmp_path) == 1
    spill.close()
    assert last is not None
    assert last.read(MESSAGE) == bytes(600), "what is held can be read to its end"
    del last
    assert open_files_in(tmp_path) == 0
    assert spill.live_bytes == 0


def test_an_empty_body_does_not_depend_on_a_file(tmp_path: Path) -> None:
    """An empty body takes no room, so it kept no file open: its reader ended the broker after all others of the file had ended."""
    spill = FileSpill(tmp_path, file_bytes=10)
    messages = [Message("", "q", b"", body, True) for body in (b"", b"x" * 10, b"y")]
    for message in messages:
        message.spill(spill)  # the third one begins another file
    empty, first, last = messages
    first.body = b""  # acknowledged
    assert open_files_in(tmp_path) == 1
    assert (empty.content(), last.content()) == (b"", b"y")
    last.body = b""
    spill.close()
    assert open_files_in(tmp_path) == 0


def test_a_full_disk_leaves_bodies_in_memory(spill: FileSpill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = Message("", "q", b"\0\0", b"first", True)
    message.spill(spill)
    assert not isinstance(message.body, bytes)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", full)
    with structlog.testing.capture_logs() as logs:
        others = [Message("", "q", b"\0\0", b"more %d" % number, True) for number in range(3)]
        for other in others:
            other.spill(spill)
    assert [other.body for other in others] == [b"more 0", b"more 1", b"more 2"]
    assert [(line["log_level"], line["directory"]) for line in logs] == [("warning", str(tmp_path))], "said once"
    monkeypatch.setattr(os, "pwrite", real)
    others[0].spill(spill)
    assert not isinstance(others[0].body, bytes), "there is room again"
    assert (others[0].content(), message.content()) == (b"more 0", b"first")
    assert (others[0].size, message.size) == (6, 5)


def test_a_body_that_the_disk_lost_is_an_error(spill: FileSpill, monkeypatch: pytest.MonkeyPatch) -> None:
    one = spill.put(bytes(100))
    assert one is not None
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    with pytest.raises(OSError, match="100 bytes at 0 are missing from a file of 100"):
        one.read(MESSAGE)


def test_a_body_that_the_disk_has_changed_is_an_error(spill: FileSpill) -> None:
    """Changed bytes used to be handed out as the message: the files are not synced, so a lost page raises no error."""
    first, second = spill.put(b"kept" * 100), spill.put(b"lost" * 2_000)
    assert first is not None
    assert second is not None
    os.pwrite(second._file._file.fileno(), bytes(4_096), 4_096)
    with pytest.raises(OSError, match="the 8000 bytes at 400 of a file of 8400 are not those that were written"):
        second.read(MESSAGE)
    assert first.read(MESSAGE) == b"kept" * 100
