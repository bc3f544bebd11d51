"""CPU plans of a group whose brokers share one host: which CPUs each broker gets.

A message goes from the primary to a backup and back, so hardly two brokers have work at a time, as the scheduler sees it. Where
CPUs are few it packs them on one, and the others idle. Under load the primary has most of the work, for it parses, routes and
answers. Without much load it waits for the backups, which answer later where they share a CPU.

| CPUs | plan |
|---|---|
| one, or as many as two a broker and more | none: the scheduler does as well |
| as many as brokers, or more | one CPU for each broker, primary or backup |
| fewer | the primary has the first CPU; the backups take the others and the first, in turn |
| fewer, and the primary's is full | the primary has the first CPU for itself; the backups share the others, in turn |

Sources: docs/decisions/0015, docs/decisions/0035.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from understudy.broker.errors import UnderstudyError

CPUS_PLENTY: Final = 2
"""With so many CPUs a broker, or more, the scheduler finds an idle one by itself."""

Shares = Mapping[str, frozenset[int]]


class NoCpusError(UnderstudyError):
    """Brokers are to be pinned, and the operating system does not say to which CPUs."""


def cpu_plan(
    brokers: Sequence[str], cpus: Sequence[int], pin: bool | None
) -> Callable[[str | None, bool], Shares] | None:
    """Say which CPUs each broker gets, by who leads and whether its CPU is full.

    Args:
        brokers: their names.
        cpus: those that may be used, each once; empty if the operating system does not tell.
        pin: always, never, or (None) where CPUs are few.

    Returns:
        From the leader, or None while no broker leads, and whether its CPU is full, to the shares; None: the scheduler is left
        alone.

    Raises:
        NoCpusError: `pin` is true and `cpus` is empty.
    """
    if pin and not cpus:
        raise NoCpusError("--pin: this operating system does not say which CPUs a process may use")
    few = 2 <= len(cpus) < CPUS_PLENTY * len(brokers)
    if not (few if pin is None else pin):
        return None
    if len(cpus) >= len(brokers) or len(cpus) == 1:
        own = dict(zip(brokers, (frozenset({cpu}) for cpu in _in_turn(cpus, len(brokers))), strict=True))
        return lambda _leader, _full: own
    return lambda leader, full: _by_role(brokers, cpus, leader, full=full)


def cpus_beside(brokers: Sequence[str], cpus: Sequence[int], pin: bool | None) -> frozenset[int] | None:
    """The CPUs of what runs beside the brokers, such as a coordination store: not the primary's, where that has its own.

    Args:
        brokers: as of `cpu_plan`.
        cpus: the same.
        pin: the same.

    Returns:
        None: the scheduler is left alone.
    """
    plan = cpu_plan(brokers, cpus, pin)
    if plan is None or len(brokers) < 2:
        return None
    shares = plan(brokers[0], True)
    others = frozenset(cpus) - shares[brokers[0]]
    return others if others and len(cpus) < len(brokers) else None


def _by_role(brokers: Sequence[str], cpus: Sequence[int], leader: str | None, *, full: bool) -> Shares:
    """While no broker leads, all run on all CPUs: the backup that is being promoted must not share a CPU with the others."""
    if leader is None:
        return dict.fromkeys(brokers, frozenset(cpus))
    backups = [broker for broker in brokers if broker != leader]
    first, *others = cpus
    of_backups = others if full else [*others, first]
    shares = {broker: frozenset({cpu}) for broker, cpu in zip(backups, _in_turn(of_backups, len(backups)), strict=True)}
    return {leader: frozenset({first}), **shares}


def _in_turn(cpus: Sequence[int], count: int) -> list[int]:
    return [cpus[number % len(cpus)] for number in range(count)]
