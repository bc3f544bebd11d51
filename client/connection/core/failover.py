"""Failover: at most one link at a time, to a broker that lets us in, opened again after a loss.

Rules:

* A round tries each address once, beginning behind the one that worked last. A broker that is away, and a backup's refusal (320 in
  place of open-ok), move on to the next one. Between rounds lies a pause that grows, with chance in it.
* A new link is given out when everything that was declared here is declared again.
* Requests that may be repeated (declarations, deletions, counts, questions) are repeated on another link. A transaction whose
  commit was asked for never is: `TransactionUnknown` says so (transactions.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from understudy.client.connection.core.addresses import named
from understudy.client.connection.core.backoff import Backoff
from understudy.client.connection.core.numbers import NoChannelError
from understudy.client.connection.core.port import Channel, Driver, Link, Procedure
from understudy.client.connection.core.topology import AnyBinding, Entity, Topology
from understudy.client.connection.errors import LostError, NoBrokerError, RefusedError

GIVE_UP_S: Final = 60.0
"""So long a call waits for a broker, unless told otherwise."""
RESOURCE_LOCKED: Final = 405
"""Answer for an exclusive queue whose old connection has not ended yet for the broker."""
FULL_PAUSE_S: Final = 0.01
LONGEST_FULL_PAUSE_S: Final = 1.0
"""Bounds of the first and of all pauses while each channel of the link is taken."""
MOST_IDLE: Final = 64
"""Channels kept for later transactions."""


class Failover:
    """The link of one connection, its topology, and its idle channels.

    Args:
        driver: does what is decided here.
        give_up_s: a call waits so long for a broker; None: for ever.
    """

    def __init__(self, driver: Driver, give_up_s: float | None = GIVE_UP_S) -> None:
        self.driver = driver
        self.topology = Topology()
        self.backoff = Backoff()
        self._give_up_s = give_up_s
        self._opening = driver.lock()
        self._link: Link | None = None
        self._last = ""
        self._failed: tuple[float, str] | None = None  # begin and reasons of the last round, if it failed
        self._idle: list[Channel] = []
        self.closed = False

    # -- links ----------------------------------------------------------------------------------------------------------

    def connected(self, started_s: float | None = None) -> Procedure[Link]:
        """The link; waits until there is one.

        Args:
            started_s: begin of the call; None: now. The wait for another call that connects counts.

        Raises:
            NoBrokerError: there was none within ``give_up_s``.
            LoginRefusedError: a broker refuses the login.
            RefusedError: a broker refuses what was declared before.
        """
        if started_s is None:
            started_s = self.driver.now_s()
        yield self._opening.acquire
        try:
            if self.closed:
                raise NoBrokerError("the connection was closed by the program")
            if self._link is None or not self._link.lives:
                if self._link is not None:
                    yield self._link.close
                    self._link = None
                self._link = yield from self._open(started_s)
            return self._link
        finally:
            self._opening.release()

    def _open(self, started_s: float) -> Procedure[Link]:
        """Rounds until one succeeds. A round of another call serves, too, if it began within this one."""
        if self._failed is not None and self._failed[0] >= started_s:
            self._check_time(started_s, self._failed[1])
        while True:
            begun_s = self.driver.now_s()
            link, reason = yield from self._round()
            if link is not None:
                self._failed = None
                return link
            self._failed = begun_s, reason
            self._check_time(started_s, reason)
            self.driver.warn(f"no broker: {reason}")
            yield partial(self.driver.pause, self.backoff.next_s(self.driver.chance()))

    def _check_time(self, started_s: float, reason: str) -> None:
        """Give up if it is time, or if the program has closed the connection meanwhile.

        Raises:
            NoBrokerError: names the reason.
        """
        if self.closed:
            raise NoBrokerError("the connection was closed by the program")
        if self._give_up_s is not None and self.driver.now_s() - started_s >= self._give_up_s:
            raise NoBrokerError(f"no broker within {self._give_up_s:g} s: {reason}")

    def _round(self) -> Procedure[tuple[Link | None, str]]:
        """Each address once; the link, or the reasons why there is none."""
        try:
            urls: list[str] = yield self.driver.find
        except LostError as error:
            return None, str(error)
        begin = urls.index(self._last) + 1 if self._last in urls else 0
        reasons: list[str] = []
        for url in (*urls[begin:], *urls[:begin]):
            try:
                link: Link = yield partial(self.driver.open, url)
                yield from self._declare_again(link)
            except LostError as error:
                reasons.append(f"{named(url)}: {error}")
            else:
                self._last = url
                return link, ""
        return None, "; ".join(reasons) or "the group shows no broker"

    def _declare_again(self, link: Link) -> Procedure[None]:
        entities = self.topology.in_order()
        if not entities:
            return
        try:
            channel: Channel = yield link.channel
            for entity in entities:
                try:
                    yield partial(channel.declare, entity)
                except RefusedError as error:
                    if error.code == RESOURCE_LOCKED:
                        raise LostError(str(error)) from error
                    raise RefusedError(error.code, f"{error.text} (declared again: {entity})") from error
            yield channel.close
        except BaseException:
            yield link.close
            raise

    def close(self) -> Procedure[None]:
        """End it; the broker gets back what was delivered and not acknowledged."""
        self.closed = True
        yield self._opening.acquire
        try:
            link, self._link = self._link, None
            self._idle.clear()
            if link is not None:
                yield link.close
        finally:
            self._opening.release()

    # -- channels -------------------------------------------------------------------------------------------------------

    def channel(self, prepare: Callable[[Channel], Procedure[None]]) -> Procedure[Channel]:
        """A new channel, prepared; begun again on another link if the first is lost. Waits while all channels are taken.

        Raises:
            NoBrokerError, LoginRefusedError: as `connected`; NoBrokerError, too, if no channel came free in time.
            RefusedError: a broker refuses the preparation.
        """
        started_s = self.driver.now_s()
        waits = Backoff(FULL_PAUSE_S, LONGEST_FULL_PAUSE_S)
        while True:
            link = yield from self.connected(started_s)
            try:
                channel: Channel = yield link.channel
                try:
                    yield from prepare(channel)
                except BaseException:
                    yield channel.close
                    raise
            except NoChannelError as error:
                self._check_time(started_s, str(error))
                idle = self._one_idle()
                if idle is not None:
                    yield idle.close
                else:
                    yield partial(self.driver.pause, waits.next_s(self.driver.chance()))
            except LostError as error:
                self.driver.warn(f"a channel is lost: {error}")
                self._check_time(started_s, str(error))
                if link.lives:  # no answer: another link may do better
                    yield link.close
                yield partial(self.driver.pause, self.backoff.next_s(self.driver.chance()))
            else:
                self.backoff.done()
                return channel

    def take_channel(self) -> Procedure[Channel]:
        """A channel in transaction mode with nothing in it, from the idle ones or a new one; `give_channel` it back."""
        while (channel := self._one_idle()) is not None:
            if channel.lives:
                return channel
        return (yield from self.channel(selected))

    def _one_idle(self) -> Channel | None:
        try:
            return self._idle.pop()
        except IndexError:  # not asked for beforehand: another thread may take the last one
            return None

    def give_channel(self, channel: Channel) -> Procedure[None]:
        """Keep a channel that `take_channel` gave, and that has nothing open."""
        if channel.lives and len(self._idle) < MOST_IDLE and channel.link is self._link:
            self._idle.append(channel)
        else:
            yield channel.close

    # -- what may be repeated -------------------------------------------------------------------------------------------

    def declare(self, entity: Entity) -> Procedure[None]:
        """Declare an entity now, and after each failover.

        Raises:
            RefusedError: the broker refuses; the entity is not declared again.
        """
        yield from self.asked(lambda channel: partial(channel.declare, entity), then=partial(self.topology.add, entity))

    def unbind(self, binding: AnyBinding) -> Procedure[None]:
        self.topology.remove_binding(binding)
        yield from self.asked(lambda channel: partial(channel.unbind, binding))

    def delete_queue(self, name: str) -> Procedure[None]:
        self.topology.remove_queue(name)
        yield from self.asked(lambda channel: partial(channel.delete_queue, name))

    def delete_exchange(self, name: str) -> Procedure[None]:
        self.topology.remove_exchange(name)
        yield from self.asked(lambda channel: partial(channel.delete_exchange, name))

    def count(self, queue: str) -> Procedure[int]:
        """How many messages are ready in a queue."""
        counted: int = yield from self.asked(lambda channel: partial(channel.count, queue))
        return counted

    def asked(
        self, request: Callable[[Channel], Callable[[], Any]], then: Callable[[], None] = lambda: None
    ) -> Procedure[Any]:
        """One request on a channel of its own, repeated on another link after a loss.

        Args:
            request: makes the call on the channel.
            then: called right behind the answer, before anything else may wait: a link may be lost while the channel closes.
        """
        answer: Any = None

        def ask(channel: Channel) -> Procedure[None]:
            nonlocal answer
            answer = yield request(channel)
            then()

        channel = yield from self.channel(ask)
        yield channel.close
        return answer


def selected(channel: Channel) -> Procedure[None]:
    """Put a new channel into transaction mode."""
    yield channel.select
