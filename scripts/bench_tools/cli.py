"""The command line of ``scripts/bench``."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from bench_tools import machine, pairs, perftest, report
from bench_tools.errors import BenchError
from bench_tools.links import Links
from bench_tools.perftest import PerfTest
from bench_tools.rabbitmq import RabbitMq
from bench_tools.rows import DEFAULT_ROWS, EXTRA_ROWS, MESSAGE_BYTES, Row, at_delays, select_rows
from bench_tools.runner import Bench, SideName
from bench_tools.sample import Window
from bench_tools.sides import Side
from bench_tools.txgen import Txgen
from bench_tools.understudy import DistantUnderstudy, Understudy

_ROOT = Path(__file__).resolve().parents[2]
_BUILD = _ROOT / "scripts" / "bench_build"
_PROGRAM = Path(sys.executable).with_name("understudy")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = ", ".join(row.name for row in DEFAULT_ROWS)
    extra = ", ".join(row.name for row in EXTRA_ROWS)
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures Understudy's cluster against RabbitMQ's mirrored nodes, all on 127.0.0.1.",
        epilog=f"Rows: {names}; on request: {extra}.  docs/performance.md says what each figure is.",
    )
    parser.add_argument("--only", choices=("rabbitmq", "understudy"), help="measure one side")
    parser.add_argument("--rounds", type=_positive_int, default=3, help="rounds, medians are taken over them (3)")
    parser.add_argument("--seconds", type=_positive, default=6.0, help="measured seconds a row (6)")
    parser.add_argument("--warmup", type=_positive, default=2.0, help="seconds before them (2; java rows at least 4)")
    parser.add_argument("--rows", metavar="NAMES", help="comma-separated, e.g. 'tx-8x10,confirm*' (all default rows)")
    parser.add_argument("--nodes", type=_positive_int, default=3, help="brokers a cluster; 1 measures one alone (3)")
    parser.add_argument("--rabbit-quorum", action="store_true", help="RabbitMQ: quorum queues, not mirrored ones")
    parser.add_argument(
        "--rabbit-both", action="store_true", help="RabbitMQ with mirrored queues, and with quorum queues"
    )
    parser.add_argument(
        "--link-delay",
        metavar="MS,...",
        type=_delays,
        default=(),
        help="each broker in a network namespace (root alone); each row for each delay of a packet between brokers, e.g. 0,1,2",
    )
    parser.add_argument(
        "--feed",
        metavar="A,B",
        help="compare our cluster with itself in two modes of the event feed, e.g. off,on: rolling files of roles "
        f"(or messages); rows {pairs.DEFAULT_ROWS} unless --rows says others",
    )
    parser.add_argument(
        "--store", metavar="A,B", help="the same for two coordination stores: file,zookeeper (one server of its own)"
    )
    parser.add_argument(
        "--pairs", type=_positive_int, default=5, help="with --feed, --store: so many pairs of runs (5)"
    )
    parser.add_argument("--work", type=Path, help="folder for both sides' files (a temporary one); must be a real disk")
    parser.add_argument("--keep", action="store_true", help="keep that folder: logs, journals")
    parser.add_argument("--json", action="store_true", help="the last line of stdout is the report as JSON")
    return parser.parse_args(arguments)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _delays(text: str) -> tuple[float, ...]:
    values = tuple(float(each) for each in text.split(","))
    if not all(0 <= each <= 1000 for each in values):
        raise argparse.ArgumentTypeError(f"{text} has a delay below 0 or above 1000 ms")
    return values


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """0 all measured, 1 a row failed or a check found something, 2 the bench could not run."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)
    try:
        if options.work:
            options.work.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="understudy-bench-", dir=options.work))
        try:
            if (options.feed or options.store) and options.link_delay:
                raise BenchError("--link-delay compares our cluster with RabbitMQ: not together with --feed or --store")
            if options.feed or options.store:
                return _run_pairs(options, work)
            return _run(options, select_rows(options.rows), work)
        finally:
            if options.keep:
                _say(f"kept: {work}")
            else:
                shutil.rmtree(work, ignore_errors=True)
    except BenchError as error:
        _say(f"bench: {error}")
        return 2
    except KeyboardInterrupt:
        _say("bench: interrupted")
        return 130


def _sides(options: argparse.Namespace) -> list[SideName]:
    theirs: list[SideName] = ["quorum"] if options.rabbit_quorum else ["rabbitmq"]
    if options.rabbit_both:
        theirs = ["rabbitmq", "quorum"]
    ours: list[SideName] = ["understudy"]
    return {"rabbitmq": theirs, "understudy": ours}.get(options.only, theirs + ours)


def _run(options: argparse.Namespace, rows: Sequence[Row], work: Path) -> int:
    sides = _sides(options)
    if machine.filesystem_of(work) == "tmpfs":
        raise BenchError(f"{work} is on tmpfs, where fsync costs nothing; give a folder on a disk with --work")
    java = any(row.tool == "perftest" for row in rows)
    txgen, perf_test = Txgen(_BUILD), PerfTest(_BUILD) if java else None  # Maven needs the network that `enter` leaves
    links: Links | None = None
    if options.link_delay:
        rows = at_delays(rows, options.link_delay)
        links = Links(_BUILD, options.nodes)
        links.enter()
    try:
        return _measure(options, rows, work, sides, txgen, perf_test, links)
    finally:
        if links is not None:
            links.stop()


def _measure(
    options: argparse.Namespace,
    rows: Sequence[Row],
    work: Path,
    sides: list[SideName],
    txgen: Txgen,
    perf_test: PerfTest | None,
    links: Links | None,
) -> int:
    def make_side(name: SideName, number: int) -> Side:
        folder = work / f"{name}-{number}"
        if name != "understudy":
            return RabbitMq(folder, options.nodes, name == "quorum", links=links)
        if links is not None:
            return DistantUnderstudy(folder, _PROGRAM, links)
        return Understudy(folder, _PROGRAM, options.nodes)

    descriptions: dict[str, dict[str, str | int]] = {
        name: dict(make_side(name, 0).description()) for name in sides
    }  # says what is not installed
    last: dict[str, Side] = {}

    def remember(name: SideName, number: int) -> Side:
        last[name] = make_side(name, number)
        return last[name]

    bench = Bench(
        txgen=txgen,
        perftest=perf_test,
        rows=rows,
        sides=sides,
        rounds=options.rounds,
        window=Window(seconds=options.seconds, warmup=options.warmup),
        cores=machine.cores(),
        make_side=remember,
        say=_say,
        links=links,
    )
    environment = machine.describe(work, _ROOT)
    began = time.time()
    outcomes = bench.run()
    descriptions |= {name: dict(side.description()) for name, side in last.items()}
    entries = report.summarise(rows, sides, outcomes)
    whole: dict[str, Any] = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "took_s": round(time.time() - began),
        "settings": {
            "rounds": options.rounds,
            "seconds": options.seconds,
            "warmup": options.warmup,
            "nodes": options.nodes,
            "message_bytes": MESSAGE_BYTES,
        },
        "loads": bench.loads,
        "environment": environment | ({"perf_test": perftest.VERSION} if perf_test is not None else {}),
        "sides": descriptions,
        "rows": entries,
    }
    _print(whole, entries, sides, as_json=options.json)
    return 1 if any(outcome.error for outcome in outcomes) else 0


def _run_pairs(options: argparse.Namespace, work: Path) -> int:
    """The cost of the event feed, or of a coordination store, in pairs."""
    if options.feed:
        modes = pairs.modes_of("--feed", options.feed, pairs.MODES)
    else:
        modes = pairs.modes_of("--store", options.store, pairs.STORES)
    rows = select_rows(options.rows or pairs.DEFAULT_ROWS)
    if machine.filesystem_of(work) == "tmpfs":
        raise BenchError(f"{work} is on tmpfs, where fsync costs nothing; give a folder on a disk with --work")
    if any(row.tool != "txgen" or row.mode in ("flow", "rpc") for row in rows):
        raise BenchError("pairs take rows of txgen that do not consume: these count what is queued")
    details = {"feed off": "", "feed on": "roles", "feed messages": "messages"}

    def make_side(name: SideName, number: int) -> Side:
        folder = work / f"{name.replace(' ', '-')}-{number}"
        zookeeper = "embedded" if name == "store zookeeper" else ""
        return Understudy(folder, _PROGRAM, options.nodes, details.get(name, ""), zookeeper)

    bench = Bench(
        txgen=Txgen(_BUILD),
        perftest=None,
        rows=rows,
        sides=modes,
        rounds=options.pairs,
        window=Window(seconds=options.seconds, warmup=options.warmup),
        cores=machine.cores(),
        make_side=make_side,
        say=_say,
    )
    about = machine.describe(work, _ROOT)
    began = time.time()
    outcomes = bench.run()
    entries = pairs.summarise(rows, modes, outcomes)
    took_s = round(time.time() - began)
    print(
        f"{about['cpu']}, {about['cores']} cores, {about['filesystem']}, {about['fdatasync_per_s']} fdatasync/s; "
        f"load {about['load_before']} before; {options.pairs} pairs, {options.seconds:g} s a row, {took_s} s in all\n"
    )
    print(pairs.table(entries))
    if options.json:
        print(json.dumps({"took_s": took_s, "environment": about, "rows": entries}))
    sys.stdout.flush()
    return 1 if any(outcome.error for outcome in outcomes) else 0


def _print(whole: dict[str, Any], entries: list[dict[str, Any]], sides: Sequence[SideName], *, as_json: bool) -> None:
    settings, about = whole["settings"], whole["environment"]
    print(
        f"{about['cpu']}, {about['cores']} cores, {about['filesystem']}, {about['fdatasync_per_s']} fdatasync/s; "
        f"load {about['load_before']} before"
    )
    for name in sides:
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in whole['sides'][name].items())}")
    print(
        f"medians of {settings['rounds']} rounds, {settings['seconds']:g} s a row, {settings['message_bytes']} bytes "
        f"a message; whole run {whole['took_s']} s\n"
    )
    print("\n".join(whole["loads"]) + "\n")
    print(report.table(entries, sides))
    if as_json:
        print(json.dumps(whole))
    sys.stdout.flush()


def _say(text: str) -> None:
    """Progress goes to stderr: stdout is the report."""
    print(text, file=sys.stderr, flush=True)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM and SIGHUP unwind the stack, so that every ``finally`` stops its cluster."""
    raise SystemExit(128 + number)
