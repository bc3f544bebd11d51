"""Every complaint of every checker, and of the clients of the workloads, can fire, and does where it should."""

from __future__ import annotations

import inspect
from collections import Counter

import pytest

from tests.simulator.tampering import TAMPERINGS, Tampering, complaints_of
from tests.simulator.tampering.complaints import ACCOUNTS, SIMULATION
from understudy.client.verdicts import LOG_VERDICTS

COMPLAINING = (
    *[f"{folder}/{path.stem}" for folder in ("checkers", "workloads") for path in (SIMULATION / folder).glob("*.py")],
    "cluster",
    "ledger",
)


@pytest.mark.parametrize("tampering", TAMPERINGS, ids=lambda each: f"{each.module.rpartition('/')[2]}-{each.name}")
def test_the_checker_complains(tampering: Tampering) -> None:
    tampering.brings_it_out()


def test_every_complaint_has_a_tampering() -> None:
    there = {str(each) for module in COMPLAINING for each in complaints_of(module)}
    tampered = Counter(str(tampering.complaint()) for tampering in TAMPERINGS)
    assert sorted(there - tampered.keys()) == []
    assert [each for each, times in tampered.items() if times > 1] == []


def test_no_complaint_is_overlooked() -> None:
    """The complaints found in the syntax are all that the simulator's text has."""
    counted = {
        path.relative_to(SIMULATION).with_suffix("").as_posix(): path.read_text(encoding="utf-8").count(
            "raise Violation("
        )
        for path in SIMULATION.rglob("*.py")
        if not path.name.startswith("test_")
    }
    assert counted[ACCOUNTS] == 1, "it raises what the verdicts return"
    counted[ACCOUNTS] = sum(inspect.getsource(verdict).count("Violation(") for verdict in LOG_VERDICTS)
    found = {module: len(complaints_of(module)) for module in COMPLAINING}
    assert {module: count for module, count in counted.items() if count != found.get(module, 0)} == {}
