"""``scripts/stress stages``: thousands of flows through three stages while everything is killed at random.

It is the demonstration of ``understudy.client.stages.demo`` with more victims. Workers, a relay, the primary broker and PostgreSQL
get SIGKILL from outside; workers also end themselves at named points. A seed decides the order of the kills.

    command           options in, exit code out
    run               the run and its verdict
    state_server      the state server of ``--xa``
    postgresql_books  books on a PostgreSQL server that can be killed
"""

from understudy.testing.stages_stress.command import stress

__all__ = ["stress"]
