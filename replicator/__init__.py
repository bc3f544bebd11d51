"""The replication conversation, both ends of it, and the fabrics that carry it.

The log itself is the conversation: a primary streams its batches (``sending/log_sender``), a backup appends, fsyncs and
acknowledges (``receiving/broker_replicator``). Only a backup that the kept log no longer reaches needs more, a catch-up beside the
log: queue by queue (``replicating_subscription`` and ``queue_replicator``) and transaction by transaction
(``tx_replicating_subscription`` and ``transaction_replicator``). A backup that has restarted is sent what is transient, a
``refill``. ``wire`` is what is said, ``fabric`` the port it is said through, ``direct`` the default. ``group_notes`` are what a
member notes in its journal.
"""
