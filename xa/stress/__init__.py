"""``scripts/stress xa``: client, state server, broker and database are killed at random moments, one round after the other.

Clients move money as in ``xa.demo``. In each round they work for a random time; then one process is killed with SIGKILL, or two
are, and it is started again. When every client has committed anew, they pause, and the books of both resource managers are
compared. Nothing but the clients themselves completes what was left: so the round also measures how long it stays in doubt.

    command     options in, exit code out
    rounds      kills, pauses and comparisons
    client      a program that makes transfers, and can be paused
    crew        the clients as processes: forked, so that a new one costs little
    evidence    what clients were told, held against the books
    report      figures and words
"""

from understudy.xa.stress.command import stress

__all__ = ["stress"]
