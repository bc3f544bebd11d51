"""Dials that take long to come to nothing."""

from __future__ import annotations

import pytest

from tests.simulator.scenario import calls, publish_confirmed, scenario


def test_a_dial_to_the_former_primary_does_not_hold_back_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The former primary hangs and its kernel still accepts: a restarted backup dials it until `link.handshake_timeout_s`."""
    with scenario(1, brokers=3, min_insync=2, backup_timeout_ms=5_000) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand(publish_confirmed, "q", b"one")
        primary, backups = group.primary, group.backups
        hand.go()
        group.run_ms(300)
        primary.pause()
        monkeypatch.setattr("tests.simulator.sim_network.DIAL_TIMEOUT_MS", 40_000)
        for node in reversed(backups):
            group.crash(node)
        for node in reversed(backups):
            node.start()

        def leads() -> bool:
            return any(node.ha.primary is not None for node in backups)

        group.until("one leads", leads, 60_000)
        before_ms = group.world.now_ms
        group.until("it serves", lambda: group.cluster.primary() in backups, 60_000)
        # Both have restarted, so the former primary is waited for: ha.expected_timeout_s (decision 0028). Its dial lasts longer.
        assert group.world.now_ms - before_ms < 12_000
        primary.resume()
