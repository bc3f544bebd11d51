"""The counts: rooms, arrows between them, foreign writes, docstrings, ids that lead out of the repository."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from scripts.house_tools.ha_words import lines_with_words
from scripts.house_tools.sources import Source, begins_without_a_noun, product_of

ID: Final = re.compile(r"\b(?:DESIGN \d+(?:\.\d+)?|(?:H|C|P|S|K|X|CP|Q|R)-\d{2,3})\b")
"""A reference to the design, or to a requirement's number."""
LISTS: Final = ("requirements.md", "testing.md")
"""The documents that list ids: requirements, and crash points."""
WIDE: Final = 12
"""A room of more files has outgrown its purpose."""


@attrs.frozen(kw_only=True)
class House:
    """The counts.

    Attributes:
        rooms: files by folder of the product, the largest first.
        circles: groups of folders of the product, each of which imports all others in the end.
        circled_files: files of ``broker/core`` in the largest circle of files.
        foreign_writes: attributes that are written through another name than ``self``, though a class of another file has them.
        docstrings, nounless: of product and tests; how many begin without a noun.
        ids: references that lead out of the repository, in product, tests and docs.
        ha_words: files of ``broker/`` with words of the HA plugin, each with the lines: in remarks, in code.
    """

    rooms: Mapping[str, int]
    circles: Sequence[Sequence[str]]
    circled_files: int
    foreign_writes: Sequence[str]
    docstrings: Mapping[str, int]
    nounless: Mapping[str, int]
    ids: Mapping[str, int]
    ha_words: Mapping[str, tuple[int, int]]


def count(sources: Sequence[Source], docs: Mapping[str, str]) -> House:
    """Count. ``docs``: text by name. An id that one of `LISTS` has leads there."""
    listed = {each for name in LISTS for each in ID.findall(docs.get(name, ""))}
    product = product_of(sources)
    imports = {each.module: set(_imports(each)) for each in product}
    rooms = {each.module: each.room for each in product}
    between: dict[str, set[str]] = defaultdict(set)
    for module, wanted in imports.items():
        for other in wanted & rooms.keys():
            if rooms[other] != rooms[module]:
                between[rooms[module]].add(rooms[other])
    core = {module: {w for w in wanted if w.startswith("broker.core")} for module, wanted in imports.items()}
    circles_of_files = circles({m: w for m, w in core.items() if m.startswith("broker.core")})
    docstrings, nounless, ids = Counter[str](), Counter[str](), Counter[str]()
    for each in sources:
        kind = "product" if each.is_product else "tests"
        for _, text in each.docstrings():
            docstrings[kind] += 1
            nounless[kind] += begins_without_a_noun(text)
        ids[kind] += _leads_out(each.text, listed)
    ids["docs"] = sum(_leads_out(text, listed) for text in docs.values())
    return House(
        rooms=dict(Counter(each.room for each in product if each.path.name != "__init__.py").most_common()),
        circles=circles(between),
        circled_files=max(map(len, circles_of_files), default=0),
        foreign_writes=sorted(_foreign_writes(product)),
        docstrings=docstrings,
        nounless=nounless,
        ids=ids,
        ha_words={
            str(each.path): found
            for each in product
            if each.path.parts[0] == "broker" and any(found := lines_with_words(each))
        },
    )


def _leads_out(text: str, listed: Container[str]) -> int:
    """How many ids in ``text`` are not listed in the repository."""
    return sum(each not in listed for each in ID.findall(text))


def _imports(source: Source) -> Iterator[str]:
    """Modules of the product that a file imports, for types too, below ``understudy``."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("understudy."):
            base = node.module.removeprefix("understudy.")
            yield base
            yield from (f"{base}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (n.name.removeprefix("understudy.") for n in node.names if n.name.startswith("understudy."))


def circles(arrows: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The strongly connected groups of more than one node, the largest first (Tarjan's algorithm, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in sorted(arrows):
        if root in index:
            continue
        work = [(root, iter(sorted(arrows.get(root, ()))))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, others = work[-1]
            for other in others:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(arrows.get(other, ())))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group: list[str] = []
                    while not group or group[-1] != node:
                        group.append(stack.pop())
                        on_stack.discard(group[-1])
                    if len(group) > 1:
                        found.append(sorted(group))
    return sorted(found, key=lambda group: (-len(group), group))


def _foreign_writes(product: Sequence[Source]) -> set[str]:
    """``attribute (file that writes it)``, of attributes that no class of the writing file has."""
    owned: dict[str, set[str]] = {each.module: set() for each in product}
    for each in product:
        for node in ast.walk(each.tree):
            if isinstance(node, ast.ClassDef):
                owned[each.module] |= set(_fields(node))
    anywhere = set().union(*owned.values()) if owned else set()
    found = set()
    for each in product:
        for name in _written(each.tree):
            if name in anywhere and name not in owned[each.module]:
                found.add(f"{name} ({each.path})")
    return found


def _fields(owner: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(owner):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            yield node.attr


def _written(tree: ast.Module) -> Iterator[str]:
    """Names of attributes that are written through something else than ``self`` or ``cls``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            through = node.value
            if not (isinstance(through, ast.Name) and through.id in ("self", "cls")):
                yield node.attr
