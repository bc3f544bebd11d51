"""Understudy: primary/backup high availability for transactional message queues.

An AMQP 0-9-1 broker whose transactions over several queues are atomic on the primary and on
every backup, through any failover. The rooms of the house are sub-packages: ``broker`` is the
host and knows nothing of replication; ``replicator`` carries the log to the backups; ``observers``
watch what the primary decides; ``ha`` is the plugin with roles, membership and promotion;
``client`` and ``xa`` are for applications and speak AMQP only; ``pipeline`` audits the event feed
on Spark. In the source tree each room lies at the top level and is linked here, so that the import
name is ``understudy.broker`` and no bare ``broker`` lands in anybody's site-packages.
"""

__version__ = "0.1.0"
