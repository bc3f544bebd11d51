"""The kit for transaction coordinators: what every coordinator must do, as checks that run it in a real core.

::

    from understudy.testing.coordinator_kit import CHECKS, Subject

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_my_coordinator(check):
        check.run(Subject(MyCoordinator))

A check makes brokers: the core, its journal and its recovery, on a disk in memory (``understudy.testing.disk``), with clients
that speak frames, two participants of the kit's own, and a seed that interleaves all of it. Nothing waits for a clock. The crash
checks kill the process or cut the power at every step of a run and within every operation of the disk.

`NotMetError` names the requirement that is not met, by its number in docs/requirements.md.
Without pytest: ``python -m understudy.testing.coordinator_kit NAME``.

The kit does not check what the host alone decides: that a participant without hooks costs no call, checkpoints and dropped
segments, which participants a log was written with, how long the rollback of a large transaction takes.
"""

from understudy.testing.coordinator_kit.check import Check, NotMetError
from understudy.testing.coordinator_kit.kit import CHECKS, Result, failures, run_kit
from understudy.testing.coordinator_kit.subject import Subject

__all__ = ["CHECKS", "Check", "NotMetError", "Result", "Subject", "failures", "run_kit"]
