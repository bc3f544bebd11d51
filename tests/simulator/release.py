"""Release: what one version of the program speaks and reads. Every broker of a simulated group runs one; scenarios mix them.

``NEXT`` is made up: the next minor version, with one more wire version, record format and kind of record. A record of that kind
changes nothing.
"""

from __future__ import annotations

from typing import Final

import attrs

from understudy.broker.core.state import BrokerState
from understudy.broker.log import record
from understudy.replicator.direct.handshake import MIN_NONCE_BYTES, Hello
from understudy.replicator.direct.session import RECORD_FORMATS, WIRE_VERSIONS

FUTURE_KIND: Final = 99
"""The kind of record that format 7 brings."""


def future_record(number: int) -> bytes:
    """One of them."""
    return record.HEAD.pack(FUTURE_KIND, 4) + number.to_bytes(4, "big")


@attrs.frozen(kw_only=True, eq=False)
class Release:
    """One version of the program.

    Attributes:
        wire_versions, record_formats: see ``LinkSession``.
        kinds: of records that it takes beyond those of the tree.
    """

    name: str
    wire_versions: tuple[int, int] = WIRE_VERSIONS
    record_formats: tuple[int, int, int] = RECORD_FORMATS
    kinds: tuple[int, ...] = ()

    def hello(self, group: str, broker: str, peer: str) -> Hello:
        """The first message on a link from a broker that runs this release."""
        return Hello(
            group=group,
            broker=broker,
            peer=peer,
            oldest_wire=self.wire_versions[0],
            newest_wire=self.wire_versions[1],
            record_format=self.record_formats[2],
            oldest_record_format=self.record_formats[0],
            newest_record_format=self.record_formats[1],
            nonce=bytes(MIN_NONCE_BYTES),
            agreed={},
        )

    def install(self, state: BrokerState) -> None:
        """Let ``state`` take what this release knows, and nothing else."""
        newest = record.NEWEST_KINDS.get(self.record_formats[1], FUTURE_KIND)
        for kind in [kind for kind in state.taking._takers if kind > newest]:
            del state.taking._takers[kind]
        for kind in self.kinds:
            state.taking._takers[kind] = lambda buf, at, end, offset, transient: None


THIS: Final = Release(name="this")
BEFORE: Final = Release(name="before", wire_versions=(1, 1), record_formats=(1, 2, 1))
"""Knows no time to live that a commit begins."""
BEFORE_MOVES: Final = Release(name="before moves", record_formats=(1, 4, 1))
"""Knows no message that leaves one queue for others."""
BEFORE_EXCHANGE_BINDINGS: Final = Release(name="before exchange bindings", record_formats=(1, 5, 1))
"""Knows no exchange that is bound to another."""
NEXT: Final = Release(name="next", wire_versions=(1, 3), record_formats=(1, 7, 1), kinds=(FUTURE_KIND,))
"""Speaks with :data:`THIS`, and knows more."""
AFTER_NEXT: Final = Release(name="after next", wire_versions=(3, 4), record_formats=(7, 8, 7), kinds=(FUTURE_KIND,))
"""Does not speak with :data:`THIS` any more."""
