"""Joining: what the state server decides when one more resource manager, or one more program, comes to a transaction."""

from __future__ import annotations

from understudy.xa.core.register.bounds import other_resource, wrong_enter, wrong_join
from understudy.xa.core.register.entry import Entry, Joined
from understudy.xa.core.register.wire import Enter, Join, Ok, Refused
from understudy.xa.core.xid import resource_of


def joined(join: Join, entry: Entry) -> tuple[Ok, Joined | None] | tuple[Refused, None]:
    """The reply to one more branch, and its record if the entry does not have it yet.

    Args:
        join: whose label may be one of the asking program.
        entry: of the transaction.
    """
    label, name = join.resource, resource_of(join.resource)
    if wrong := wrong_join(name, label, entry, join.identity):
        return Refused("protocol", wrong), None
    if wrong := other_resource(entry, {name: join.identity}):
        return Refused("wrong_resource", wrong), None
    return Ok(), Joined(entry.gid, label, join.identity) if label not in entry.resources else None


def refused_program(enter: Enter, entry: Entry) -> Refused | None:
    """Why a program with these resource managers cannot join; None if it can."""
    if wrong := wrong_enter(enter, entry):
        return Refused("protocol", wrong)
    if wrong := other_resource(entry, enter.identities):
        return Refused("wrong_resource", wrong)
    return None
