"""Report: what a run has done, in figures and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import attrs

from understudy.xa.stress.client import Paused, Told


@attrs.define
class Report:
    """Grows round by round.

    Attributes:
        seed: what was drawn.
        settled_s: of each round, from the moment when all processes are back until nothing is in doubt.
        refused: tries to begin that failed while something was down or being recovered.
    """

    seed: int
    rounds: int = 0
    killed: Counter[str] = attrs.field(factory=Counter)
    told: Counter[str] = attrs.field(factory=Counter)
    settled_s: list[tuple[float, str]] = attrs.field(factory=list)
    refused: int = 0
    transfers: int = 0
    seconds: float = 0
    problems: list[str] = attrs.field(factory=list)

    @property
    def kills(self) -> int:
        return self.killed.total()

    def add_round(
        self, victims: Counter[str], told: Iterable[Told], paused: Iterable[Paused], settled_s: float, transfers: int
    ) -> None:
        """A round in which everything held."""
        self.rounds += 1
        self.killed += victims
        self.told += Counter(one.verdict.value for one in told)
        self.refused += sum(one.refused for one in paused)
        self.settled_s.append((settled_s, " and ".join(sorted(victims.elements()))))
        self.transfers = transfers

    def end(self, seconds: float) -> None:
        """Record how long the rounds took together."""
        self.seconds = seconds

    def as_json(self) -> dict[str, Any]:
        """All of it, for a program."""
        times = sorted(seconds for seconds, _ in self.settled_s)
        return {
            "ok": not self.problems,
            "problems": self.problems,
            "seed": self.seed,
            "rounds": self.rounds,
            "kills": self.kills,
            "killed": dict(self.killed),
            "told": dict(self.told),
            "refused": self.refused,
            "transfers": self.transfers,
            "settled_s": {name: round(_quantile(times, at), 3) for name, at in _QUANTILES.items()},
            "longest_after": max(self.settled_s, default=(0, ""))[1],
            "seconds": round(self.seconds, 1),
        }

    def lines(self) -> list[str]:
        """All of it, for people."""
        row = self.as_json()
        killed = ", ".join(f"{victim} {count} times" for victim, count in sorted(self.killed.items())) or "nothing"
        told = ", ".join(f"{verdict} {count}" for verdict, count in sorted(self.told.items())) or "nothing"
        times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in row["settled_s"].items())
        return [
            f"Killed with SIGKILL: {killed}; {self.rounds} rounds in {self.seconds:.0f} s",
            f"Clients were told: {told}; {self.transfers} transfers are in the ledger",
            f"In doubt after all were back: {times} (after the death of {row['longest_after'] or 'nothing'})",
            *(f"FAILED: {problem}" for problem in self.problems),
            *([] if self.problems else ["Both resource managers agreed after each round."]),
        ]


_QUANTILES = {"median": 0.5, "p99": 0.99, "longest": 1.0}


def _quantile(ordered: list[float], at: float) -> float:
    return ordered[min(int(at * len(ordered)), len(ordered) - 1)] if ordered else 0.0
