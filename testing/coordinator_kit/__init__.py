"""The kit for transaction coordinators: what every coordinator must do, as checks that run it in a real core (note 003).

::

    from understudy.testing.coordinator_kit import CHECKS, Subject

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_my_coordinator(check):
        check.run(Subject(MyCoordinator))

A check makes brokers: the core, its journal and its recovery, on a disk in memory (``understudy.testing.disk``), with clients
that speak frames, two participants of the kit's own, and a seed that interleaves all of it. Nothing waits for a clock. The crash
checks kill the process or cut the power at every step of a run and within every operation of the disk.

`NotMetError` names the requirement that is not met. Without pytest: ``python -m understudy.testing.coordinator_kit NAME``.

Not the kit's: what the host alone decides. A participant without hooks costs no call (C-18), checkpoints and dropped segments
(C-25, C-33), which participants a log was written with (C-27), how long the rollback of a large transaction takes (C-29).
"""

from understudy.testing.coordinator_kit.check import Check, NotMetError
from understudy.testing.coordinator_kit.kit import CHECKS, Result, failures, run_kit
from understudy.testing.coordinator_kit.subject import Subject

__all__ = ["CHECKS", "Check", "NotMetError", "Result", "Subject", "failures", "run_kit"]
