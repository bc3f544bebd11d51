"""The direct fabric: one connection to each other broker, authenticated both ways by a shared secret.

It is TCP, or a Unix socket between brokers of one machine.

``framing`` makes frames of bytes, ``handshake`` is what two brokers must agree on and how they prove that they hold the
secret, ``session`` is one end of a link without its connection, ``link`` what the core holds of it. Those know no clock and no
socket, so that the simulator runs them as they are. ``driver`` is their asyncio edge, with ``unix_socket`` beside it; both are
imported by name, never from here, or everything that imports this room would bring sockets along.
"""

from understudy.replicator.direct.framing import FrameReader, FramingError
from understudy.replicator.direct.handshake import HandshakeError
from understudy.replicator.direct.link import DirectLink, LinkListener
from understudy.replicator.direct.session import LinkSession, LinkStatistics

__all__ = [
    "DirectLink",
    "FrameReader",
    "FramingError",
    "HandshakeError",
    "LinkListener",
    "LinkSession",
    "LinkStatistics",
]
