"""The cost of one setting: the same cluster in two modes, by turns in one run, and the ratios of each pair.

The modes are those of the event feed, or the coordination stores.

A figure of one run says little on a shared machine; the ratio of two runs that follow one another says more, and the median of
five such ratios is worth a line in docs/performance.md. Each pair is a round of `runner.Bench`; odd pairs begin with one mode, even
pairs with the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from attrs import asdict, frozen

from bench_tools.errors import BenchError
from bench_tools.report import aligned
from bench_tools.rows import Row
from bench_tools.runner import Outcome, SideName
from bench_tools.sample import Sample

DEFAULT_ROWS = "tx-32x10,tx-1x1,confirm-8"
MODES: dict[str, SideName] = {"off": "feed off", "on": "feed on", "messages": "feed messages"}
"""``on``: each broker runs a feed into rolling files, at detail "roles"; ``messages``: at that detail; ``off``: none does."""


STORES: dict[str, SideName] = {"file": "store file", "zookeeper": "store zookeeper"}
"""The coordination store of the cluster; ``zookeeper``: one server, which the cluster starts."""


def modes_of(option: str, text: str, known: Mapping[str, SideName]) -> tuple[SideName, SideName]:
    """Two modes, the one that is compared with first.

    Raises:
        BenchError: they are not two, or not modes.
    """
    names = text.split(",")
    if len(set(names)) != 2 or not set(names) <= known.keys():
        raise BenchError(f"{option} {text!r}: two of {', '.join(known)} are compared, as in {','.join([*known][:2])}")
    return known[names[0]], known[names[1]]


@frozen(kw_only=True)
class Pair:
    """One row in both modes, one after the other.

    Attributes:
        rate, broker_cpu, all_cpu: the second mode's figure divided by the first one's. ``broker_cpu`` is that of the brokers alone;
            in ``all_cpu`` there is also what the feed used until it had caught up.
    """

    number: int
    first: Sample
    second: Sample
    rate: float
    broker_cpu: float
    all_cpu: float


def pairs_of(row: Row, modes: tuple[SideName, SideName], outcomes: Sequence[Outcome]) -> list[Pair]:
    """Those of which both halves were measured."""
    found = {(each.round, each.side): each.sample for each in outcomes if each.row == row.name and each.sample}
    pairs = []
    for number in sorted({number for number, _ in found}):
        first, second = found.get((number, modes[0])), found.get((number, modes[1]))
        if first is not None and second is not None:
            pairs.append(
                Pair(
                    number=number,
                    first=first,
                    second=second,
                    rate=second.messages_per_s / first.messages_per_s,
                    broker_cpu=second.broker_cpu_us_per_message / first.broker_cpu_us_per_message,
                    all_cpu=_all_cpu(second) / _all_cpu(first),
                )
            )
    return pairs


def _all_cpu(sample: Sample) -> float:
    return sample.broker_cpu_us_per_message + sample.feed_cpu_us_per_message


def summarise(
    rows: Sequence[Row], modes: tuple[SideName, SideName], outcomes: Sequence[Outcome]
) -> list[dict[str, Any]]:
    """One entry a row: its pairs, the medians of their ratios, and what went wrong."""
    entries = []
    for row in rows:
        pairs = pairs_of(row, modes, outcomes)
        entries.append(
            {
                "row": row.name,
                "modes": modes,
                "pairs": [asdict(pair) for pair in pairs],
                "median": {
                    name: round(median(getattr(pair, name) for pair in pairs), 3)
                    for name in ("rate", "broker_cpu", "all_cpu")
                }
                if pairs
                else None,
                "problems": [
                    f"pair {each.round}: {each.error}" for each in outcomes if each.row == row.name and each.error
                ],
            }
        )
    return entries


def table(entries: Sequence[dict[str, Any]]) -> str:
    """A line a pair, then the medians of the ratios with the lowest and the highest."""
    first, second = entries[0]["modes"]
    rates = [f"{first} msgs/s", f"{second} msgs/s", "ratio"]
    cpu = [f"{first} us/msg", f"{second} us/msg", "ratio"]
    lines = [["row", "pair", *rates, *cpu, "feed us/msg", "with feed"]]
    for entry in entries:
        lines += [_line(entry["row"], pair) for pair in entry["pairs"]]
    text = aligned(lines)
    medians = [["row", "pairs", "msgs/s", "lowest", "highest", "broker us/msg", "lowest", "highest", "with feed"]]
    medians += [_medians(entry) for entry in entries if entry["median"]]
    text += f"\n\n{second} / {first}, medians of the pairs' ratios:\n" + aligned(medians)
    problems = [f"  {entry['row']} {problem.splitlines()[0]}" for entry in entries for problem in entry["problems"]]
    return text + ("\n\nproblems:\n" + "\n".join(problems) if problems else "")


def _line(row: str, pair: dict[str, Any]) -> list[str]:
    first, second = pair["first"], pair["second"]
    return [
        row,
        str(pair["number"]),
        f"{first['messages_per_s']:,.0f}",
        f"{second['messages_per_s']:,.0f}",
        f"{pair['rate']:.3f}",
        f"{first['broker_cpu_us_per_message']:,.1f}",
        f"{second['broker_cpu_us_per_message']:,.1f}",
        f"{pair['broker_cpu']:.3f}",
        f"{second['feed_cpu_us_per_message']:,.1f}",
        f"{pair['all_cpu']:.3f}",
    ]


def _medians(entry: dict[str, Any]) -> list[str]:
    ratios = {name: [pair[name] for pair in entry["pairs"]] for name in ("rate", "broker_cpu")}
    spans = {name: [f"{min(values):.3f}", f"{max(values):.3f}"] for name, values in ratios.items()}
    found = entry["median"]
    return [
        entry["row"],
        str(len(entry["pairs"])),
        f"{found['rate']:.3f}",
        *spans["rate"],
        f"{found['broker_cpu']:.3f}",
        *spans["broker_cpu"],
        f"{found['all_cpu']:.3f}",
    ]
