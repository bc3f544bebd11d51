"""``scripts/demo xa``: money moves between a PostgreSQL database and a queue of the broker while everything is killed.

Each transfer is one distributed transaction: a withdrawal takes from an account and publishes a message with the amount, a
deposit takes such a message and adds to an account. Workers, broker, database and state server are killed with SIGKILL in turn,
and started again. In the end no branch may be in doubt, and accounts and queue together must hold what there was at first.

    command     options in, exit code out
    stage       the servers as processes: `postgresql_server`, and `group` in the place of one broker
    worker      a program that makes transfers, under a job
    books       what accounts and queue hold
"""

from understudy.xa.demo.command import demo

__all__ = ["demo"]
