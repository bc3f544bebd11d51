"""A BASE that cannot be taken costs the link, and nothing else: not the journal, not the next start."""

from __future__ import annotations

import pytest

from tests.simulator.scenario import SimNode, calls, scenario
from understudy.broker.core.life.meta import Meta
from understudy.replicator import wire


def bases(primary: SimNode) -> dict[str, bytes]:
    meta = Meta.of(primary.node.state)
    raw = meta.encode()
    return {
        "form": bytes((wire.BASE, 3)) + raw,
        "no names": bytes((wire.BASE, wire.BASE_AGAIN)) + raw,
        "names cut short": wire.encode_base(wire.BASE_AGAIN, raw, [(7, 1), (8, 1)])[:-5],
        "too many names": bytes((wire.BASE, wire.BASE_AGAIN)) + raw + b"\xff\xff\xff\xff",
        "a name that is not held": wire.encode_base(wire.BASE_AGAIN, raw, [(7, 1)]),
    }


@pytest.mark.parametrize(
    "what",
    ["form", "no names", "names cut short", "too many names", "a name that is not held"],
)
def test_it_is_refused_and_nothing_of_it_is_kept(what: str) -> None:
    with scenario() as group:
        hand = group.hand()
        hand(calls.declare, "a")
        hand.publish("a", b"1")
        group.everywhere("a", b"1")
        primary, backup = group.primary, group.backups[0]
        assert primary.ha.primary is not None
        link = primary.ha.primary.backups[backup.name].link
        assert link is not None
        message = bases(primary)[what]
        primary.run(lambda: link.send(message))
        group.run_ms(300)
        assert not backup.extension.replicator.part, "it is listed, and may be promoted"
        group.crash(backup, hard=False)
        group.run_ms(50)
        backup.start_if_down()
        assert backup.up
        group.ready()
        hand.publish("a", b"2")
        group.everywhere("a", b"1", b"2")
