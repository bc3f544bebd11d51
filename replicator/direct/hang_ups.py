"""HangUps: who ended a link without a word, and how long that speaks against a broker that does not answer a dial.

A broker that ends a link says why (GOODBYE). A connection that is closed or reset without that was closed by a kernel: that of a
process that is gone, or of something between. The host of a process that is gone refuses the next dial, which proves it. But its
address may go with it: a container that was killed has one for some hundred milliseconds more. Then a dial is answered by nobody.

So two facts together count as *gone*: the link was hung up just now, and nobody answers a dial for :data:`SILENT_MS`. It is no
proof: something between may have reset the link and swallow the dial. A campaign then replaces a primary that runs, which costs an
interruption and no more (docs/replication.md, Who campaigns when). Silence alone is no sign: a network that is cut for a moment, or
a host that is busy, looks the same.
"""

from __future__ import annotations

from typing import Final

SILENT_MS: Final = 1_500
"""A kernel that lost the first SYN repeats it after a second."""

FRESH_MS: Final = 10_000
"""Later a dial is about another network, or another life of that broker."""


class HangUps:
    """The last one of each broker, until it is linked again."""

    def __init__(self) -> None:
        self._at_ms: dict[str, int] = {}

    def note(self, peer: str, now_ms: int) -> None:
        self._at_ms[peer] = now_ms

    def forget(self, peer: str) -> None:
        self._at_ms.pop(peer, None)

    def is_fresh(self, peer: str, now_ms: int) -> bool:
        """True if silence counts as *gone* for a dial of ``peer`` that begins now."""
        at_ms = self._at_ms.get(peer)
        return at_ms is not None and now_ms - at_ms < FRESH_MS
