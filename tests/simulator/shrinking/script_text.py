"""A scenario's text, and back. What a reader of tests/scenario meets:

# Comments.
seed 117
mutation half-a-transaction               a known bug that is put in, if any
finds G1 by checkers/replicas             or: holds
brokers 3                                 knobs; those that are not named are plain (`script.PLAIN`)
workloads fifo stages
at 412.251 crash broker=b1 back_ms=200    strikes (`strike_text`)
leave 1250                                the nemesis leaves; without this line as in a seed's run
heal 0                                    everything is healed so much later
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs

from tests.simulator.knobs import ALL_BODIES, ALL_WORKLOADS, MOST_BROKERS, Knobs
from tests.simulator.mutations import MUTATIONS
from tests.simulator.nemesis.strike import Struck
from tests.simulator.shrinking.script import PLAIN, Finding, Script
from tests.simulator.shrinking.strike_text import brokers_of, read_strike, show_strike
from understudy.broker.core.queues.moved_bodies import NO_BODIES, MovedBodies
from understudy.broker.core.queues.paging import PagingLimits


class ScriptError(ValueError):
    """A text is no scenario: names the file, the line and the value."""


def _int(text: str) -> int:
    if re.fullmatch(r"\d+", text) is None:
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _positive(text: str) -> int:
    number = _int(text)
    if number < 1:
        raise ValueError(f"{text!r} is less than 1")
    return number


def _share(text: str) -> float:
    if re.fullmatch(r"0(\.\d+)?|1", text) is None:
        raise ValueError(f"{text!r} is not a share from 0 to 1")
    return float(text)


def _brokers(text: str) -> int:
    number = _positive(text)
    if number > MOST_BROKERS:
        raise ValueError(f"{text!r} is more than {MOST_BROKERS}")
    return number


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise ValueError(f"{text!r} is not of the form A..B with A below B")
    return int(found[1]), int(found[2])


def _workloads(text: str) -> frozenset[str]:
    names = text.split()
    unknown = [name for name in names if name not in ALL_WORKLOADS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no workload; there are {', '.join(ALL_WORKLOADS)}")
    return frozenset(names)


_MOVED_BODIES: Final = {"none": NO_BODIES, "all": ALL_BODIES}


def _moved_bodies(text: str) -> MovedBodies:
    if text not in _MOVED_BODIES:
        raise ValueError(f"{text!r} is neither {' nor '.join(_MOVED_BODIES)}")
    return _MOVED_BODIES[text]


def _answer(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"{text!r} is neither yes nor no")
    return text == "yes"


def _compaction(text: str) -> tuple[int, ...]:
    found = re.fullmatch(r"(\d+),(\d+),(\d+),(\d+)", text)
    if found is None:
        raise ValueError(f"{text!r} is not of the form A,B,C,D")
    return tuple(map(int, found.groups()))


def _paging(text: str) -> PagingLimits:
    found = re.fullmatch(r"(\d+),(\d+),(\d+),(\d+),(\d+),(\d+)", text)
    if found is None:
        raise ValueError(f"{text!r} is not of the form A,B,C,D,E,F")
    return PagingLimits(**dict(zip(attrs.fields_dict(PagingLimits), map(int, found.groups()), strict=True)))


@attrs.frozen
class _Knob:
    """Where it stands ("" or the field of `Knobs` that holds it), how it is read and shown."""

    inside: str = ""
    read: Callable[[str], Any] = _positive
    show: Callable[[Any], str] = str


KNOBS = {
    "brokers": _Knob(read=_brokers),
    "min_insync": _Knob(),
    "tellers": _Knob(),
    "workloads": _Knob(read=_workloads, show=lambda names: " ".join(sorted(names))),
    "segment_bytes": _Knob("journal"),
    "kept_bytes": _Knob(),
    "credit_bytes": _Knob(),
    "piece_bytes": _Knob(),
    "pieces_in_flight": _Knob(),
    "fsync_us": _Knob(read=_range, show=lambda pair: f"{pair[0]}..{pair[1]}"),
    "bucket_shift": _Knob(),
    "idle_ms": _Knob(),
    "backup_timeout_ms": _Knob(),
    "expected_timeout_ms": _Knob(),
    "shared_turns": _Knob(read=_share, show=lambda share: f"{share:g}"),
    "inline_syncs": _Knob(read=_share, show=lambda share: f"{share:g}"),
    "unruly_commits": _Knob(read=_share, show=lambda share: f"{share:g}"),
    "compaction": _Knob(read=_compaction, show=lambda four: ",".join(map(str, four))),
    "compaction_pause_ms": _Knob(),
    "slice": _Knob(),
    "page_bits": _Knob(),
    "applied_at_once": _Knob(),
    "sweep": _Knob(),
    "unstable_bytes_per_connection": _Knob("limits"),
    "unstable_bytes": _Knob("limits"),
    "outcome_limit": _Knob("limits"),
    "parted_bytes": _Knob("limits"),
    "part_bytes": _Knob("limits"),
    "parts_in_flight_bytes": _Knob("limits"),
    "moved_bodies": _Knob("limits", _moved_bodies, lambda bodies: "all" if bodies == ALL_BODIES else "none"),
    "paging": _Knob("limits", _paging, lambda limits: ",".join(map(str, attrs.astuple(limits)))),
    "mandatory_at_commit": _Knob("limits", _answer, lambda given: "yes" if given else "no"),
}
ALWAYS_SHOWN = ("brokers", "min_insync", "tellers")


def get_knob(knobs: Knobs, name: str) -> Any:
    inside = KNOBS[name].inside
    return getattr(getattr(knobs, inside) if inside else knobs, name)


def with_knob(knobs: Knobs, name: str, value: Any) -> Knobs:
    """A copy in which it is ``value``."""
    inside = KNOBS[name].inside
    if not inside:
        return attrs.evolve(knobs, **{name: value})
    return attrs.evolve(knobs, **{inside: attrs.evolve(getattr(knobs, inside), **{name: value})})


# -- showing ------------------------------------------------------------------------------------------------------


def show(script: Script, *comments: str) -> str:
    """The text; ``comments`` stand at its head, a line each."""
    lines = [f"# {comment}".rstrip() for comment in comments]
    lines.append(f"seed {script.seed}")
    if script.mutation:
        lines.append(f"mutation {script.mutation}")
    lines.append(f"finds {script.finds}" if script.finds is not None else "holds")
    for name, knob in KNOBS.items():
        value = get_knob(script.knobs, name)
        if name in ALWAYS_SHOWN or value != get_knob(PLAIN, name):
            lines.append(f"{name} {knob.show(value)}")
    lines += [show_strike(struck) for struck in script.strikes]
    if script.leave_ms is not None:
        lines.append(f"leave {script.leave_ms}")
    lines.append(f"heal {script.heal_ms}")
    return "\n".join(lines) + "\n"


# -- reading ------------------------------------------------------------------------------------------------------


def read(path: Path) -> Script:
    """Raises :class:`ScriptError`, also for a file that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"{path}: cannot be read: {error}") from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Script:
    """``name`` is for errors. Raises :class:`ScriptError`."""
    reader = _Reader()
    number = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            try:
                reader.line(line)
            except ValueError as error:
                raise ScriptError(f"{name}:{number}: {error}") from None
    try:
        return reader.script()
    except ValueError as error:
        raise ScriptError(f"{name}:{number}: {error}") from None


class _Reader:
    """Takes line by line."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._knobs = PLAIN
        self._strikes: list[Struck] = []
        self._said: set[str] = set()

    def line(self, line: str) -> None:
        """Raises ValueError."""
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if word == "at":
            self._strikes.append(read_strike(rest.split()))
            return
        said = "finds" if word == "holds" else word
        if said in self._said:
            raise ValueError(f"{line.strip()!r} says {word} again")
        self._said.add(said)
        if word in KNOBS:
            self._knobs = with_knob(self._knobs, word, self._named(word, KNOBS[word].read, rest))
        elif word in ("seed", "leave", "heal"):
            field = word if word == "seed" else f"{word}_ms"
            self._values[field] = self._named(word, _int, rest)
        elif word == "mutation":
            if rest not in MUTATIONS:
                raise ValueError(f"mutation: {rest!r} is not known")
            self._values["mutation"] = rest
        elif word == "finds":
            found = re.fullmatch(r"(\S+) by (\S+)", rest)
            if found is None:
                raise ValueError(f"finds: {rest!r} is not of the form PROMISE by CHECKER")
            self._values["finds"] = Finding(found[1], found[2])
        elif word == "holds" and not rest:
            self._values["finds"] = None
        else:
            raise ValueError(f"{line.strip()!r} says nothing that a scenario can say")

    @staticmethod
    def _named(word: str, read_value: Callable[[str], Any], text: str) -> Any:
        try:
            return read_value(text)
        except ValueError as error:
            raise ValueError(f"{word}: {error}") from None

    def script(self) -> Script:
        """When all lines are read. Raises ValueError."""
        for word in ("seed", "finds"):
            if word not in self._said:
                raise ValueError(f"the line {'seed' if word == 'seed' else 'finds (or holds)'} is missing")
        knobs = self._knobs
        if knobs.min_insync > knobs.brokers:
            raise ValueError(f"min_insync {knobs.min_insync} is more than brokers {knobs.brokers}")
        names = {f"b{i + 1}" for i in range(knobs.brokers)}
        for struck in self._strikes:
            unknown = sorted(brokers_of(struck.strike) - names)
            if unknown:
                raise ValueError(f"{show_strike(struck)!r} names {unknown[0]}; there are {knobs.brokers} brokers")
        strikes = tuple(sorted(self._strikes, key=lambda struck: struck.at_us))
        return Script(knobs=knobs, strikes=strikes, **self._values)
