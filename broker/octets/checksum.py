"""CRC-32 of octets, as zlib, gzip and Ethernet have it (reflected polynomial 0xEDB88320).

Every octet of a message is summed several times on its way: in the batch, in the journal's group, by the broker that is sent both.
Intel's ISA-L does it with the processor's own multiplication, 2 to 20 times as fast as Python's zlib. It is there for x86-64 and
64-bit ARM; elsewhere zlib does it. Both give the same sum.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

SOURCE = crc32.__module__.partition(".")[0]
"""Who computes it, for the log: ``isal`` or ``zlib``."""

__all__ = ["SOURCE", "crc32"]
