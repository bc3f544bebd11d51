"""The high-availability plugin: roles, membership, readiness, promotion, fencing.

``ha_broker`` is the root; at any time it holds one role, ``primary`` or ``backup``. ``in_sync_set`` is the primary's copy of
the stored set and the only code that changes it; ``remote_backup`` what the primary knows of one backup, with its
``queue_guard`` and ``tx_tracker``s; ``promotion`` the decision to take over. ``coordination`` is the port to the store.
"""
