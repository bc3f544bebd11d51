"""The pages of a group, and which blockers a backup has."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from understudy.broker.plugin_api.pages import BadQueryError, Page
from understudy.ha.ha_broker import HaBroker
from understudy.ha.showing.health import KINDS, promotion_blockers
from understudy.ha.showing.pages import health_pages
from understudy.ha.status import BrokerStatus

MONITORING = Path(__file__).parents[4] / "docs" / "monitoring" / "README.md"
GROUP = SimpleNamespace(members=("b1", "b2"), epoch=3, primary="b1")


def backup(**more: Any) -> HaBroker:
    """b2, a ready backup, but for what is said."""
    facts: dict[str, Any] = {
        "listed": True,
        "wiped": False,
        "judged": True,
        "waits_for_more": False,
        "unfit": "it lacks 5",
    }
    facts |= {"group": GROUP, "suspended": False} | more
    ha = SimpleNamespace(config=SimpleNamespace(broker="b2"), primary=None, stopped="", group=facts["group"])
    ha.without_group = "founds group 'g'"
    ha.backup = SimpleNamespace(**facts)
    ha.status = BrokerStatus.READY
    ha.blockers = lambda: more.get("says", [])
    ha.stored = SimpleNamespace(missing=more.get("missing", ""))
    ha.broker = SimpleNamespace(reception=SimpleNamespace(refusal="b2 is a backup", carrying=None))
    ha.replicator = SimpleNamespace(
        part=more.get("part", False), linked=more.get("linked", True), behind_records=7, epoch_seen=3
    )
    return cast("HaBroker", ha)


def ask(ha: HaBroker | None, path: str, **query: str) -> tuple[int, Any]:
    page = health_pages(lambda: ha)[path](query)
    assert isinstance(page, Page)
    assert not isinstance(page.body, bytes)
    return page.status, page.body["blockers"]


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        ({}, []),
        ({"linked": False}, []),
        ({"group": None}, ["group"]),
        ({"suspended": True}, ["store"]),
        ({"suspended": True, "missing": "the store has lost the group"}, ["store"]),
        ({"listed": False}, ["set"]),
        ({"wiped": True, "judged": False}, ["empty", "journal"]),
        ({"waits_for_more": True}, ["lacks"]),
        ({"part": True, "listed": False}, ["set", "catch_up"]),
    ],
)
def test_what_keeps_a_backup_from_being_promoted(more: dict[str, Any], kinds: list[str]) -> None:
    found = promotion_blockers(backup(**more))
    assert [each.kind for each in found] == kinds
    assert all(each.kind in KINDS and each.text for each in found)
    status, blockers = ask(backup(**more), "/promotable")
    assert (status, [each["kind"] for each in blockers]) == (503 if kinds else 200, kinds)


@pytest.mark.parametrize(
    ("more", "query", "expected"),
    [
        ({}, {}, (200, [])),
        ({}, {"lag": "7"}, (200, [])),
        ({}, {"lag": "6"}, (503, ["7 log records behind, more than 6"])),
        ({"linked": False, "says": ["not reached"]}, {"lag": "100"}, (503, ["not reached"])),
        ({"part": True, "says": ["catching up"]}, {}, (503, ["catching up"])),
    ],
)
def test_how_far_a_backup_may_be_behind(more: dict[str, Any], query: dict[str, str], expected: Any) -> None:
    assert ask(backup(**more), "/backup", **query) == expected


@pytest.mark.parametrize(
    "query", [{"lag": "-1"}, {"lag": "x"}, {"lag": "\N{SUPERSCRIPT TWO}"}, {"lag": "9" * 19}, {"lga": "1"}]
)
def test_a_lag_that_is_none(query: dict[str, str]) -> None:
    with pytest.raises(BadQueryError):
        ask(backup(), "/backup", **query)


def test_a_backup_is_not_the_primary_and_says_what_it_is() -> None:
    assert ask(backup(), "/primary") == (503, ["b2 is a backup"])


def test_between_two_cores_every_page_says_no() -> None:
    text = "the core is being recovered"
    assert ask(None, "/primary") == ask(None, "/backup") == (503, [text])
    assert ask(None, "/promotable") == (503, [{"kind": "core", "text": text}])


def test_the_docs_have_each_kind_of_blocker() -> None:
    text = MONITORING.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", text[text.index("## Promotion") :], re.MULTILINE)
    assert tuple(rows) == KINDS
