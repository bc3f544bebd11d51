"""Numbers of a link's channels, within what the broker allows.

aiormq numbers channels past the broker's ``channel_max``, and the broker answers that with the end of the connection. So the
connection numbers its channels itself.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from understudy.client.connection.errors import LostError

HIGHEST: Final = 65_535
"""Highest number that AMQP 0-9-1 has."""


class NoChannelError(LostError):
    """All channels of a link are taken; the link itself lives."""


class ChannelNumbers:
    """Numbers of one link's channels. The highest is spare: it is for answers to questions within transactions.

    Args:
        channel_max: of connection.tune; 0: no bound but AMQP's.
    """

    def __init__(self, channel_max: int) -> None:
        self._spare = channel_max or HIGHEST
        self._most = max(1, self._spare - 1)
        self._last = 0

    def free(self, *taken: Collection[int], spare: bool = False) -> int:
        """A number that none of ``taken`` has, behind the last one.

        Args:
            taken: numbers of channels that are open, opening or closing.
            spare: take the spare number if it is free.

        Raises:
            NoChannelError: all are taken.
        """
        if spare and not any(self._spare in each for each in taken):
            return self._spare
        if all(len(each) - (self._spare in each) < self._most for each in taken):
            for _ in range(self._most):
                self._last = self._last % self._most + 1
                if not any(self._last in each for each in taken):
                    return self._last
        raise NoChannelError(f"all {self._most} channels of the connection are taken")
