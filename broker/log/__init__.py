"""The log: one totally ordered stream of records per group, its batches, and the journal that keeps them.

``record`` is what a record looks like, ``frame`` how records travel and rest (the same bytes on the wire and on disk),
``log`` the in-memory end of it, ``journal`` and ``segment`` the durable one. Everything here is plain synchronous code;
files and threads live in ``understudy.broker.server``.
"""
