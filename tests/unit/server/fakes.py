"""Stand-ins for what asyncio gives a protocol."""

from __future__ import annotations

import asyncio
from typing import Any


class FakeTransport(asyncio.Transport):
    """Remembers what was done to it, in order."""

    def __init__(self, peer: tuple[str, int] = ("127.0.0.1", 4000)) -> None:
        super().__init__({"peername": peer})
        self.written: list[bytes] = []
        self.done: list[str] = []
        self.high = 0

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.done.append("writelines")
        self.written += [bytes(data) for data in list_of_data]

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.done.append("eof")

    def pause_reading(self) -> None:
        self.done.append("pause")

    def resume_reading(self) -> None:
        self.done.append("resume")

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def is_closing(self) -> bool:
        return "close" in self.done or "abort" in self.done
