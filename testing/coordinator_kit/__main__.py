"""``python -m understudy.testing.coordinator_kit NAME``: the kit on one installed coordinator.

Exit code: 0 if it passes, 1 if it does not, 2 if it cannot be loaded.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Annotated, Any, Final

import typer

from understudy.broker.coordinators import Coordinator, find_coordinator
from understudy.testing.coordinator_kit.call_times import CallTimes, NeverReturnsError
from understudy.testing.coordinator_kit.kit import run_kit
from understudy.testing.coordinator_kit.kit_run import KitRun
from understudy.testing.coordinator_kit.subject import Subject

FAILED: Final = 1
BAD_INPUT: Final = 2


def main(
    name: Annotated[str, typer.Argument(help="Of the entry point, or module:Class.", show_default=False)],
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of [transactions.options]; may be given again.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="Interleavings of each check.")] = 5,
    crash_seeds: Annotated[
        int, typer.Option(min=1, max=10_000, help="Interleavings that are cut short at each of their places.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Run all checks of the kit on a transaction coordinator."""
    try:
        options = dict(_pair(each) for each in option or ())
        subject = Subject(_load(name), options, seeds, crash_seeds)
        KitRun(subject, times=CallTimes())
    except NeverReturnsError as error:
        sys.stderr.write(f"understudy: coordinator {name!r}: {error}\n")
        raise typer.Exit(BAD_INPUT) from None
    except Exception as error:  # noqa: BLE001  # the class is somebody else's, and may raise anything where it is made
        said = str(error)
        named = said if said.startswith("coordinator ") else f"coordinator {name!r}: {said}"
        sys.stderr.write(f"understudy: {named}\n")
        raise typer.Exit(BAD_INPUT) from None
    failed, stopped = 0, False
    began = time.monotonic()
    for result in run_kit(subject):
        failed += result.failure is not None
        stopped = result.failure is not None and result.check.last_if_it_fails
        row = {
            "check": result.check.name,
            "requirements": list(result.check.requirements),
            "passed": result.failure is None,
            "failure": "" if result.failure is None else str(result.failure),
        }
        sys.stdout.write((json.dumps(row) if as_json else _line(row)) + "\n")
        sys.stdout.flush()
    if not as_json:
        seconds = time.monotonic() - began
        verdict = f"{failed} checks fail" if failed else "passes"
        rest = "; no other check was run, since each would take too long" if stopped else ""
        sys.stdout.write(f"{name}: {verdict} ({seconds:.1f} s){rest}\n")
    raise typer.Exit(FAILED if failed else 0)


def _line(row: dict[str, Any]) -> str:
    verdict = "ok    " if row["passed"] else "FAILED"
    return f"{verdict} {', '.join(row['requirements']):<22} {row['check']}" + (
        "" if row["passed"] else f"\n       {row['failure']}"
    )


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not key or not found:
        raise ValueError(f"option {text!r} is not of the form KEY=VALUE")
    return key, value


def _load(name: str) -> type[Coordinator]:
    if ":" not in name:
        return find_coordinator(name)
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, Coordinator)):
        raise TypeError(f"{found!r} is no subclass of Coordinator")
    return found


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)  # its markup would take [transactions.options] away
    app.command()(main)
    app()
