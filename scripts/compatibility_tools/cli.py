"""The command line of ``scripts/compatibility``."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import attrs
from bench_tools.errors import BenchError

from scripts.compatibility_tools import brokers, sources
from scripts.compatibility_tools.certificates import give_certificates, make_certificates
from scripts.compatibility_tools.differences import DIFFERENCES
from scripts.compatibility_tools.errors import CompatibilityError
from scripts.compatibility_tools.outcomes import Outcome, judge
from scripts.compatibility_tools.program_runs import run_program
from scripts.compatibility_tools.program_table import PROGRAMS, find_programs, programs_text
from scripts.compatibility_tools.report import SuiteReport, as_json, as_text
from scripts.compatibility_tools.runners import TOOLS
from scripts.compatibility_tools.running import run_suite
from scripts.compatibility_tools.suites import SUITES, Suite, find_suite


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = ", ".join(f"{suite.name} {suite.version}" for suite in SUITES)
    programs = ", ".join(program.name for program in PROGRAMS)
    parser = argparse.ArgumentParser(
        prog="scripts/compatibility",
        description="Runs the test suites of AMQP clients against this broker, and against RabbitMQ where it is installed.",
        epilog=f"Suites: {names}. Programs: {programs}. docs/compatibility.md says more. "
        "Exit code 0: what fails here is known; 1: a test fails that is no known difference, or a known difference has "
        "vanished; 2: a suite could not be run.",
    )
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="a suite; all: each suite that PyPI has; programs [NAME...]: programs"
    )
    parser.add_argument(
        "--source", type=Path, metavar="DIR", help="run the tests of this tree, not of the source package"
    )
    parser.add_argument("--version", metavar="V", help="run this version of the source package, not the pinned one")
    parser.add_argument(
        "--brokers", type=_brokers, default=1, metavar="N", help="so many brokers in a group; 1: one alone (1)"
    )
    parser.add_argument(
        "--beside", choices=("rabbitmq", "nothing"), help="what else is asked (rabbitmq, where it is installed)"
    )
    parser.add_argument("--select", default="", metavar="WORDS", help="words for the runner, e.g. '-k consume'")
    parser.add_argument("--quick", action="store_true", help="the part of each suite that our own tests run")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="folder for copies, brokers and logs (a temporary one)"
    )
    parser.add_argument("--keep", action="store_true", help="keep that folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object, not tables")
    return parser.parse_args(arguments)


def _brokers(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 16):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 16")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 as known, 1 not as known, 2 could not be run, 130 interrupted."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, _leave)
    carry_out = _programs if options.names[0] == "programs" else _suites
    try:
        if options.work:
            options.work.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="understudy-compatibility-", dir=options.work)).absolute()
        try:
            return carry_out(options, work)
        finally:
            if options.keep:
                _say(f"kept: {work}")
            else:
                shutil.rmtree(work, ignore_errors=True)
    except (CompatibilityError, BenchError, OSError) as error:
        _say(f"scripts/compatibility: {error}")
        return 2
    except KeyboardInterrupt:
        _say("scripts/compatibility: interrupted")
        return 130


def _programs(options: argparse.Namespace, work: Path) -> int:
    """Programs under kill -9 of the primary, one after another."""
    for option, value in (("--source", options.source), ("--version", options.version), ("--select", options.select)):
        if value:
            raise CompatibilityError(f"{option} {value} is of suites; programs take names alone")
    rows, broken = [], False
    for program in find_programs(options.names[1:]):
        try:
            rows.append(run_program(program, work / program.name, _say))
        except (CompatibilityError, BenchError) as error:
            _say(f"scripts/compatibility: {error}")
            broken = True
    if rows:
        print(json.dumps({"programs": [attrs.asdict(row) for row in rows]}) if options.json else programs_text(rows))
    return 2 if broken else 1 - all(row.holds for row in rows)


def _suites(options: argparse.Namespace, work: Path) -> int:
    reports = _run(options, work)
    if options.json:
        print(json.dumps({"suites": [as_json(report) for report in reports]}))
    else:
        print("\n\n".join(as_text(report) for report in reports))
    return 0 if all(report.verdict.holds for report in reports) else 1


def _run(options: argparse.Namespace, work: Path) -> list[SuiteReport]:
    suites = _chosen(options)
    starts = {"understudy": brokers.understudy(options.brokers)}
    if options.beside == "rabbitmq" or (options.beside is None and brokers.rabbitmq_is_installed()):
        starts["rabbitmq"] = brokers.rabbitmq
    places = [(suite, _tree(suite, options), _tool(suite)) for suite in suites]
    certificates = work / "certificates"
    make_certificates(certificates)
    outcomes: dict[str, dict[str, Mapping[str, Outcome]]] = {suite.name: {} for suite in suites}
    took_s: dict[str, dict[str, float]] = {suite.name: {} for suite in suites}
    for side, start in starts.items():
        with start(work / side, certificates) as address:
            for suite, tree, tool in places:
                _say(f"{suite.name}: running against {address.product}, port {address.port}")
                folder = work / f"{suite.name}-{side}"
                sources.copy_tree(tree, folder)
                if suite.certificates:
                    give_certificates(certificates, folder / suite.certificates)
                began = time.monotonic()
                log = work / f"{suite.name}-{side}.log"
                outcomes[suite.name][address.product] = run_suite(
                    suite, tool, folder, address.values, _selection(suite, options), log, _say
                )
                took_s[suite.name][address.product] = time.monotonic() - began
    return [_report(suite, options, outcomes[suite.name], took_s[suite.name]) for suite in suites]


def _chosen(options: argparse.Namespace) -> list[Suite]:
    published = [suite.name for suite in SUITES if not suite.needs_source]
    names = [name for word in options.names for name in (published if word == "all" else [word])]
    suites = [find_suite(name) for name in dict.fromkeys(names)]
    for option, value in (("--source", options.source), ("--version", options.version)):
        if value is not None and len(suites) > 1:
            raise CompatibilityError(
                f"{option} {value} is of one suite, and {len(suites)} are named: {', '.join(names)}"
            )
    if options.source is not None and options.version is not None:
        raise CompatibilityError(
            f"--source {options.source} and --version {options.version}: only one of them can be meant"
        )
    return suites


def _tree(suite: Suite, options: argparse.Namespace) -> Path:
    if options.source is not None:
        return sources.named_tree(suite, options.source)
    return sources.published_tree(suite, options.version or suite.version, _say)


def _tool(suite: Suite) -> Path:
    if suite.runner == "pytest":
        return sources.environment(suite.name, _say)
    name = TOOLS[suite.runner]
    found = shutil.which(name)
    if found is None:
        raise CompatibilityError(f"the suite {suite.name} is run by {name}, which is not installed")
    return Path(found)


def _selection(suite: Suite, options: argparse.Namespace) -> list[str]:
    with contextlib.suppress(ValueError):
        return [*(suite.quick if options.quick else ()), *shlex.split(options.select)]
    raise CompatibilityError(f"--select {options.select!r} has a quotation mark that does not end")


def _report(
    suite: Suite, options: argparse.Namespace, sides: Mapping[str, Mapping[str, Outcome]], took_s: Mapping[str, float]
) -> SuiteReport:
    here, *others = sides.values()
    version = options.version or suite.version
    return SuiteReport(
        name=suite.name,
        version=f"of {options.source}" if options.source else version,
        sides=sides,
        took_s=took_s,
        excluded=suite.excluded,
        verdict=judge(
            here,
            others[0] if others else None,
            DIFFERENCES.get(suite.name, ()),
            whole=not (options.select or options.quick),
        ),
    )


def _say(line: str) -> None:
    """Progress goes to stderr: stdout is the report."""
    print(line, file=sys.stderr, flush=True)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM unwinds the stack, so that every ``finally`` stops its broker."""
    raise SystemExit(128 + number)
