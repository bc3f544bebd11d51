"""Stages with ``xa=True``: their work in PostgreSQL and in the broker are two branches of one transaction of `understudy.xa`.

No table and no window: both branches are prepared, the state server records the decision, and both are committed. What a killed
worker leaves, the next worker of the application completes as the record says.

    place          the profile of the application: its broker, its database, its state server
    transactions   the transaction manager of one worker, and its recovery
    session        one transaction at a time, as a slot uses a database
    blocking       the same for an initiation without asyncio
    channel        a channel that works on branches: the broker's verbs as messages (docs/dtx.md)
"""
