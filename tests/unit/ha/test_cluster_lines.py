"""What ``understudy cluster`` prints is for who reads it, and stops nobody."""

from __future__ import annotations

import errno
import io
import os
import sys

import pytest

from understudy.ha.cluster_command import _print


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_line_that_cannot_be_printed_is_a_line_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the command, and with it all brokers, when its output went to a file and the disk was full."""
    monkeypatch.setattr(sys, "stdout", FullDisk())
    _print("b1 is active")
    _print("b2 is ready")
