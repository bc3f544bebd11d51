"""Runs one seed and says how it ended, as plain values that cross from one process to another.

A run ends well, or with a broken promise that a checker found, or because something raised: an assertion of the product or of
the simulator, or an error that nobody expects. Which of them, and where, is part of the result: a mutation counts as found
only by a checker.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from pathlib import Path

import attrs

from tests.simulator.cluster import Report, SimCluster
from tests.simulator.knobs import Fixed, Knobs
from tests.simulator.ledger import Violation

ROOT = Path(__file__).resolve().parents[2]


class End(Enum):
    """How a run ended."""

    HELD = "held"
    VIOLATION = "violation"
    ASSERTION = "assertion"
    ERROR = "error"


@attrs.frozen(kw_only=True)
class SeedResult:
    """One seed's run.

    Attributes:
        report: what was counted, up to the end or the failure.
        promise: what is broken: G1 to G9, "liveness", ...; the type of what was raised if no checker spoke; "" if it held.
        text: what was seen.
        where: file and line that raised, from the root of the tree.
        found_by: the checker, workload or module that raised: ``checkers/replicas``, ``cluster``, ``broker/log/log``.
        traceback: for all but violations, which speak for themselves.
        options: what of the run was not the seed's draw, as options of the command.
    """

    seed: int
    end: End
    report: Report
    cpu_s: float
    promise: str = ""
    text: str = ""
    where: str = ""
    found_by: str = ""
    traceback: str = ""
    options: str = ""

    @property
    def held(self) -> bool:
        return self.end is End.HELD


def replay_command(seed: int, mutation: str = "", options: str = "") -> str:
    """The command that tells the story of that run."""
    changed = f" --mutation {mutation}" if mutation else ""
    return f"scripts/simulate --seed {seed}{changed}{options} --trace"


def run_seed(seed: int, fixed: Fixed | None = None) -> SeedResult:
    """Run one seed; what ``fixed`` says is not drawn."""
    with _collected_afterwards():
        if fixed is None:
            return run_cluster(SimCluster(seed))
        result = run_cluster(SimCluster(seed, knobs=Knobs.draw(seed).fixed(fixed)))
        return attrs.evolve(result, options=fixed.options())


@contextmanager
def _collected_afterwards() -> Iterator[None]:
    """A cluster is one large cycle. It goes when this ends, in one collection that passes over what was there before."""
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()


def run_cluster(cluster: SimCluster, meanwhile: AbstractContextManager[object] | None = None) -> SeedResult:
    """Run a cluster that has been made, inside ``meanwhile``."""
    began_s = time.process_time()
    collecting = gc.isenabled()
    gc.disable()  # a run leaves few cycles behind while it lasts, and looking for them costs a tenth of it
    end = End.HELD
    fields: dict[str, str] = {}
    try:
        with meanwhile or nullcontext():
            cluster.run()
    except Exception as error:  # noqa: BLE001  # whatever a run raises is its result
        end, fields = _failure(error)
    finally:
        if collecting:
            gc.enable()
    return SeedResult(
        seed=cluster.world.seed, end=end, report=cluster.report(), cpu_s=time.process_time() - began_s, **fields
    )


def _failure(error: Exception) -> tuple[End, dict[str, str]]:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _place(frame.filename)]
    place, line = (_place(frames[-1].filename), frames[-1].lineno) if frames else ("", 0)
    fields = {"where": f"{place}:{line}", "found_by": place.removeprefix("tests/simulator/").removesuffix(".py")}
    if isinstance(error, Violation):
        return End.VIOLATION, {**fields, "promise": error.promise, "text": error.text}
    end = End.ASSERTION if isinstance(error, AssertionError) else End.ERROR
    trace = "".join(traceback.format_exception(error))
    return end, {**fields, "promise": type(error).__name__, "text": str(error), "traceback": trace}


def _place(filename: str) -> str:
    """The file's name from the root of the tree; "" for one of Python's or of a library."""
    path = Path(filename).resolve()
    if not path.is_relative_to(ROOT) or ".venv" in path.parts:
        return ""
    return path.relative_to(ROOT).as_posix()
