"""``scripts/check --house``: the counts of the house. ``--added BASE``: what a change adds, against the rules.

Exit code 1: a docstring that the change adds begins without a noun. 2: there is no such commit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import attrs

from scripts.house_tools.counts import WIDE, House, count
from scripts.house_tools.sources import added_lines, begins_without_a_noun, read_sources

ROOT: Final = Path(__file__).parents[2]
SHOWN: Final = 10


def lines(house: House, *, everything: bool) -> list[str]:
    """For people."""
    wide = {room: files for room, files in house.rooms.items() if files > WIDE}
    said = [f"rooms with more than {WIDE} files   {len(wide)} of {len(house.rooms)}"]
    said += [f"    {room.replace('.', '/')}: {files}" for room, files in wide.items()]
    said.append(f"circles of rooms              {len(house.circles)}")
    said += [f"    {len(circle)}: {', '.join(each.replace('.', '/') for each in circle)}" for circle in house.circles]
    said.append(f"files of broker/core in the largest circle of files   {house.circled_files}")
    said.append(f"attributes written outside their owner's file         {len(house.foreign_writes)}")
    shown = house.foreign_writes if everything else house.foreign_writes[:SHOWN]
    said += [f"    {each}" for each in shown]
    if len(shown) < len(house.foreign_writes):
        said.append(f"    ... and {len(house.foreign_writes) - len(shown)} more: --all")
    for kind, docstrings in house.docstrings.items():
        share = 100 * house.nounless[kind] / docstrings if docstrings else 0.0
        said.append(
            f"docstrings of {kind} that begin without a noun   {house.nounless[kind]} of {docstrings}, {share:.1f} %"
        )
    remarks, code = (sum(each[at] for each in house.ha_words.values()) for at in (0, 1))
    said.append(f"lines of broker/ with words of the HA plugin   {remarks + code}: remarks {remarks}, code {code}")
    most = sorted(house.ha_words.items(), key=lambda each: (-sum(each[1]), each[0]))
    said += [f"    {path}: {sum(found)}" for path, found in (most if everything else most[:SHOWN])]
    said.append("ids that lead out of the repository   " + ", ".join(f"{kind} {n}" for kind, n in house.ids.items()))
    return said


def judge_added(base: str) -> int:
    """Name each docstring that was added and begins without a noun."""
    try:
        added = added_lines(ROOT, base)
    except subprocess.CalledProcessError as error:
        print(f"git diff {base}: {error.stderr.strip()}", file=sys.stderr)
        return 2
    found = [
        f"{each.path}:{line}: a docstring begins with a noun or a verb, not so: {text.splitlines()[0]!r}"
        for each in read_sources(ROOT)
        for line, text in each.docstrings()
        if line in added.get(str(each.path), ()) and begins_without_a_noun(text)
    ]
    print("\n".join(found) or "no docstring was added that begins without a noun")
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/check --house", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object on one line")
    parser.add_argument(
        "--all",
        action="store_true",
        help="every attribute that is written outside its owner's file, and every file with words of the HA plugin",
    )
    parser.add_argument(
        "--added", metavar="BASE", help="judge the docstrings that the working tree adds to this commit"
    )
    options = parser.parse_args()
    if options.added is not None:
        return judge_added(options.added)
    docs = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))}
    house = count(read_sources(ROOT), docs)
    print(json.dumps(attrs.asdict(house)) if options.json else "\n".join(lines(house, everything=options.all)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
