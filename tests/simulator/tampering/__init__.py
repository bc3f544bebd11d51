"""Tamperings: for each complaint of each checker, one thing that is falsified in a short scenario, so that it must follow.

The mutation campaign shows that known bugs are found, by whichever checker is first. Here it is the checkers that are tested: that
none is mute. Most complaints are about brokers that differ from the log, so what is falsified is a broker, a client's
book, the store or a message; where the log itself has to be wrong, records are shown to the reference as if they had been chosen.
"""

from __future__ import annotations

from tests.simulator.tampering import (
    accounts,
    answers,
    chosen_log,
    duplicates,
    final_check,
    hand_overs,
    in_sync,
    kept_bodies,
    levels,
    moves,
    odd_workloads,
    order,
    reference,
    replicas,
    restart,
    returns,
    served,
    statements,
    turns,
    workloads,
)
from tests.simulator.tampering.complaints import Complaint, complaints_of
from tests.simulator.tampering.tampering import Tampering

MODULES = (
    accounts,
    answers,
    chosen_log,
    duplicates,
    final_check,
    hand_overs,
    in_sync,
    kept_bodies,
    levels,
    moves,
    odd_workloads,
    order,
    reference,
    replicas,
    restart,
    returns,
    served,
    statements,
    turns,
    workloads,
)
TAMPERINGS: tuple[Tampering, ...] = tuple(
    each for module in MODULES for each in vars(module).values() if isinstance(each, Tampering)
)

__all__ = ["TAMPERINGS", "Complaint", "Tampering", "complaints_of"]
