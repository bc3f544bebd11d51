"""The deciding part of the broker: connections, channels, exchanges, queues, and the state they change.

Bytes and facts in, bytes and facts out. Nothing here opens a socket, reads a clock or starts a task; the driver in
``understudy.broker.server`` (and the simulator, in its place) feeds what has arrived, then ends the turn once.
"""
