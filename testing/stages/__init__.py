"""For tests of stages (docs/stages.md, Testing stages): a broker beside the test, crashes, skipped time, shuffled deliveries.

::

    kit             StagesKit: one application in one test
    crash           a worker in a process of its own, which ends itself with SIGKILL at a named point
    shuffling       deliveries in an order by chance
    skipping        the clock of the library, moved on by a test
    databases       one SQLite file, or one PostgreSQL database, for each test
    beside          the broker's process, and what is asked of it
    broker_program  that process: the broker, whose clock for delays a test moves on

The fixture ``stages_kit`` of ``understudy.testing.pytest_plugin`` makes kits.
"""

from understudy.testing.stages.kit import DeadLetter, StagesKit

__all__ = ["DeadLetter", "StagesKit"]
