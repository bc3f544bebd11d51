"""Bounds of the state server's requests: lengths and numbers, so that every list can be sent and every file be read.

Each function returns why a request is refused; "" if it is not.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

import msgspec

from understudy.xa.core.codes import HEURISTIC, KNOWN
from understudy.xa.core.register.entry import Entry
from understudy.xa.core.register.wire import (
    MAX_PAGE_OCTETS,
    WIRE_VERSION,
    Begin,
    Enter,
    Hello,
    Heuristic,
    Rule,
    Started,
)
from understudy.xa.core.xid import PROGRAM_MARK, resource_of

MAX_NAME: Final = 256
MAX_GLOBAL_ID: Final = 64
MAX_FOREIGN_ID: Final = 600
"""Characters of a global id of any program: 200 octets, each as ``%XX``."""
MAX_RESOURCES: Final = 1000
MAX_RULED: Final = 1000
MAX_PROGRAMS: Final = 1000
MAX_TEXTS: Final = 1 << 16
"""Octets of all identities, and of all proofs, of one transaction."""
MAX_REASON: Final = 1000
"""Characters: of a longer text the beginning is kept."""


def wrong_hello(hello: Hello) -> str:
    """Of the names in the first request."""
    for what in ("job", "profile", "fingerprint"):
        value = getattr(hello, what)
        if not 1 <= len(value) <= MAX_NAME or not value.isprintable():
            return f"{what} must have 1 to {MAX_NAME} printable characters"
    return ""


def wrong_version(hello: Hello) -> str:
    """Of the protocol."""
    if hello.version == WIRE_VERSION:
        return ""
    return f"this server speaks version {WIRE_VERSION}, the client {hello.version}"


def wrong_profile(entry: Entry, hello: Hello) -> str:
    """Of a program that asks for an entry of other resource managers, or of another job."""
    return (
        f"transaction {entry.gid} of job {entry.job} was begun with profile {entry.profile!r} (fingerprint "
        f"{entry.fingerprint}), and this is profile {hello.profile!r} (fingerprint {hello.fingerprint}) of job "
        f"{hello.job}: nothing was changed"
    )


def other_resource(entry: Entry, identities: Mapping[str, str]) -> str:
    """Of a program whose resource manager of some name is not the one of the entry. Without a recorded identity all will do."""
    for name, here in identities.items():
        there = entry.identities.get(name, here)
        if there != here:
            told = f"is {here}" if here else "does not tell what it is"
            return f"transaction {entry.gid} has its branch of resource manager {name!r} in {there}, and here {name!r} {told}"
    return ""


def wrong_identities(identities: Mapping[str, str]) -> str:
    """Of what resource managers say that they are."""
    names = next((wrong_resource(name) for name in identities if wrong_resource(name)), "")
    return names or _wrong_texts(identities, "identity")


def wrong_prepared(prepared: Mapping[str, str], entry: Entry) -> str:
    """Of the branches that a program calls prepared, and of their proofs, together with those that are recorded already."""
    unknown = next((label for label in prepared if label not in entry.resources), None)
    if unknown is not None:
        return f"transaction {entry.gid} has no branch {unknown[:MAX_NAME]!r}, which is said to be prepared"
    return _wrong_texts({**entry.prepared, **prepared}, "proof")


def _wrong_texts(texts: Mapping[str, str], what: str) -> str:
    """Of what resource managers have said, by resource manager or label: all of it is shown by every list."""
    for name, text in texts.items():
        if len(text) > MAX_NAME or not text.isascii() or not text.isprintable():
            return f"the {what} of {name!r}, {text[:MAX_NAME]!r}, is not at most {MAX_NAME} printable ASCII characters"
    octets = len(msgspec.json.encode(dict(texts)))
    return f"a list of {octets} octets for {what}, and {MAX_TEXTS} are the most" if octets > MAX_TEXTS else ""


def wrong_begin(begin: Begin) -> str:
    """Of the global id and the resource managers."""
    if wrong := wrong_identities(begin.identities):
        return wrong
    gid = begin.gid
    if not 1 <= len(gid) <= MAX_GLOBAL_ID or not gid.isascii() or not gid.isprintable():
        return f"global id {gid!r} is not 1 to {MAX_GLOBAL_ID} printable ASCII characters"
    if len(begin.resources) > MAX_RESOURCES:
        return f"transaction {gid} names {len(begin.resources)} resource managers, and {MAX_RESOURCES} are the most"
    return next((wrong_resource(name) for name in begin.resources if wrong_resource(name)), "")


def wrong_resource(name: str) -> str:
    """Of the name of a resource manager."""
    if not 1 <= len(name) <= MAX_NAME or not name.isascii() or not name.isprintable():
        return (
            f"the name of a resource manager has 1 to {MAX_NAME} printable ASCII characters, and is {name[:MAX_NAME]!r}"
        )
    return f"the name of a resource manager, {name!r}, has a {PROGRAM_MARK}" if PROGRAM_MARK in name else ""


def wrong_join(name: str, label: str, entry: Entry, identity: str) -> str:
    """Of one more resource manager of a transaction, the label of its branch, and its identity."""
    if label not in entry.resources and len(entry.resources) == MAX_RESOURCES:
        return f"transaction {entry.gid} has {MAX_RESOURCES} branches, which are the most"
    return wrong_resource(name) or wrong_identities({**entry.identities, name: identity})


def wrong_codes(request: Started | Heuristic, entry: Entry) -> str:
    """Of return codes, of which every list must be able to show the name, and of the branches that they belong to."""
    heuristic = isinstance(request, Heuristic)
    known = entry.heuristics if heuristic else entry.started
    allowed: Container[int] = HEURISTIC if heuristic else KNOWN
    for label, code in request.codes.items():
        _, mark, number = label.partition(PROGRAM_MARK)
        if wrong := wrong_resource(resource_of(label)):
            return wrong
        if mark and not (number.isascii() and number.isdecimal() and len(number) <= len(str(MAX_PROGRAMS))):
            return f"transaction {entry.gid}: {label!r} is no branch of a program"
        if code not in allowed:
            what = "heuristic code" if heuristic else "return code"
            return f"transaction {entry.gid}: {code} of {label} is no {what} that this server knows"
    if len({**known, **request.codes}) > MAX_RESOURCES:
        return f"transaction {entry.gid}: there are codes of more than {MAX_RESOURCES} branches"
    return ""


def wrong_enter(enter: Enter, entry: Entry) -> str:
    """Of one more program and its branches."""
    if wrong := wrong_identities(enter.identities):
        return wrong
    if len(entry.programs) == MAX_PROGRAMS or len(entry.resources) + len(enter.resources) > MAX_RESOURCES:
        most = f"{MAX_PROGRAMS} programs and {MAX_RESOURCES} branches"
        return f"transaction {enter.gid} has no room for one more program: {most} are the most"
    return next((wrong_resource(name) for name in enter.resources if wrong_resource(name)), "")


def wrong_rule(rule: Rule, earlier: Mapping[str, str]) -> str:
    """Of a ruling that is added to an earlier one."""
    ruled = {**earlier, **rule.ruled}
    if (
        not 1 <= len(rule.gid) <= MAX_FOREIGN_ID
        or not rule.gid.isprintable()
        or not rule.ruled
        or len(ruled) > MAX_RULED
    ):
        return f"a ruling has 1 to {MAX_RULED} branches of one global id of 1 to {MAX_FOREIGN_ID} printable characters"
    if (octets := len(msgspec.json.encode(ruled))) > MAX_PAGE_OCTETS:
        return (
            f"the ruling of {rule.gid} has {octets} octets, and {MAX_PAGE_OCTETS} are the most: complete fewer branches"
        )
    return ""
