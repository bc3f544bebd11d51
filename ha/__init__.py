"""The high-availability plugin: roles, membership, readiness, promotion, fencing.

``ha_broker`` is the root; at any time it holds one role: ``leading`` (the primary) or ``following`` (a backup). ``store`` has the
ports to the coordination store, ``operators`` what an operator may ask, ``showing`` what a group shows of itself, ``trial`` groups
for trials. Each folder ``edge`` does the I/O of its room.
"""
