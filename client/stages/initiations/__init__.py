"""Initiations: messages that are sent outside of a stage, together with a change of the database.

The decisions are in ``core/initiating.py``: a generator of steps. Two edges do them: one for asyncio, one for programs without
it. The second calls the database in the caller's thread, and the broker on a loop in a thread of its own: so both speak AMQP by
the same code.

    initiation   what the block of `Stages.begin` is given
    asynchronous, blocking   the two edges
    sender       the broker's side of both
    loop_thread  an event loop in a thread
"""
