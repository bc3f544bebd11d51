"""Changes of a group's state, in words: what each coordination store keeps as its history. Pure."""

from __future__ import annotations

from typing import Final

import attrs
import msgspec

from understudy.ha.store.coordination import GroupState

MAX_HISTORY: Final = 100
"""Changes that a store keeps, the newest ones. Forced epochs are kept beyond that."""

_TOLD_OTHERWISE: Final = frozenset({"epoch", "primary", "version", "members"})


def change_text(before: GroupState | None, after: GroupState) -> str:
    """Changes of a group, for people; generic, so that a new field is told without a change here.

    Args:
        before: None if the store held no group.
        after: what it holds now.
    """
    if before is None and not after.forced:
        return f"founded by {after.primary}"
    if before is None or after.forced != before.forced or after.founding != before.founding:
        return f"forced: {after.primary} is the base, in-sync {{{', '.join(after.members)}}}; before: {before}"
    told = []
    if after.epoch != before.epoch:
        told.append(f"{after.primary} promoted, after {before.primary}")
    told += [f"{name} joins the set" for name in after.members if name not in before.members]
    told += [f"{name} leaves the set" for name in before.members if name not in after.members]
    for field in attrs.fields(GroupState):
        if field.name in _TOLD_OTHERWISE:
            continue
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            told.append(f"{field.name} {_plain(old)} -> {_plain(new)}")
    return "; ".join(told) or "written over, to settle an answer that was lost, or to see that the store answers"


def anew_text(before: GroupState | None, after: GroupState) -> str:
    """History entry of a group that its primary has written anew, after the store had lost it.

    Args:
        before: the older state that the store showed; None if it showed no group.
        after: what it holds now.
    """
    showed = "no group" if before is None else f"epoch {before.epoch}, version {before.version}"
    return (
        f"written anew by {after.primary}, since the store showed {showed}: primary {after.primary}, "
        f"in-sync {{{', '.join(after.members)}}}"
    )


def _plain(value: object) -> str:
    return msgspec.json.encode(value).decode()
