"""Parts of clients' programs: connections one after the other, and the answers to publishes with confirms."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator.checkers.answers import Expected
from tests.simulator.sim_client import Closed, Lost, Program, SimClient
from understudy.broker.amqp.methods import BASIC_ACK, BASIC_NACK


def sessions(client: SimClient, over: Callable[[], bool], session: Callable[[], Program]) -> Program:
    """Connect and have a ``session``, again and again until it is ``over``."""
    while not over():
        try:
            yield from client.connect()
            yield from session()
        except (Lost, Closed):
            client.disconnect("again")


def confirms(client: SimClient, expected: Expected, told: Callable[[int, str, bool], None]) -> Program:
    """Wait until each publish is confirmed or refused; ``told`` hears of each: tag, stamp, True if it is confirmed."""
    while expected.confirms:
        event = yield from client.wait(BASIC_ACK, BASIC_NACK)
        newest, multiple = event[2][0], event[2][1]
        for tag in [each for each in expected.confirms if each == newest or (multiple and each <= newest)]:
            told(tag, expected.confirms.pop(tag), event[1] == BASIC_ACK)
