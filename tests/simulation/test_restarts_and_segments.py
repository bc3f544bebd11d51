"""A broker that is restarted more often than its journal gets two new segments still lets the old ones go.

An hour of the demo showed otherwise: each restart brings a refill, whose pieces stood in the journal as bound notes (decision
0008), so nothing was ever dropped, and each recovery took longer than the one before, up to half a minute.
"""

from __future__ import annotations

import attrs

from tests.simulator.knobs import Knobs
from tests.simulator.scenario import calls, scenario

RESTARTS = 24
SEGMENT_BYTES = 32 << 10
ROUND_KIB = 12
"""What is published, and taken away again, between two restarts: less than half a segment."""


def test_restarts_do_not_keep_old_segments() -> None:
    journal = attrs.evolve(Knobs.draw(1).journal, segment_bytes=SEGMENT_BYTES, alignment_bytes=512)
    with scenario(journal=journal, kept_bytes=1 << 20) as group:
        backup = group.backups[0]
        hand = group.hand()
        hand(calls.declare, "a")
        most = 0
        for _ in range(RESTARTS):
            group.crash(backup, hard=False)
            backup.start()
            group.ready()
            hand.publish(
                "a", *[bytes(1 << 10)] * ROUND_KIB
            )  # one after the other: when a segment is full, not all of it is applied
            group.run_ms(50)
            hand(calls.purge, "a")
            group.run_ms(1_500)
            most = max(most, backup.journal.statistics().segments)
        assert RESTARTS * ROUND_KIB << 10 > 8 * SEGMENT_BYTES
        assert most <= 4
