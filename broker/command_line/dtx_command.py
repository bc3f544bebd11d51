"""``understudy dtx``: which branches of distributed transactions are in doubt, and an operator's word on them (docs/dtx.md).

What is in doubt is read over HTTP, from any broker; it is decided over AMQP, by the leader, so that the permissions of the
vhost hold.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from understudy.broker.amqp.methods import DTX_COMPLETE, DTX_FORGET
from understudy.broker.command_line.amqp_address import AmqpAddress
from understudy.broker.command_line.amqp_call import CallRefusedError, OutcomeUnknownError, connect
from understudy.broker.command_line.broker_rows import (
    DOWN,
    UNKNOWN,
    NothingThereError,
    Row,
    access_of,
    answers,
    ask_page,
    leader_of,
    local_access,
    place_of,
    rows_of_directory,
)
from understudy.broker.command_line.text_table import table
from understudy.broker.errors import UnderstudyError
from understudy.broker.printable import escaped
from understudy.broker.transactions.in_doubt import PREPARED
from understudy.broker.transactions.xid import Xid

PASSWORD_VARIABLE: Final = "UNDERSTUDY_PASSWORD"  # noqa: S105  # its name
CAPABILITY: Final = "understudy.dtx"
PAGE_TIMEOUT_S: Final = 5.0
"""A page of thousands of branches takes longer than a status."""
MORE_LOOKS: Final = 2
"""Lists that differ each time do differ."""
BETWEEN_LOOKS_S: Final = 0.5
MAX_DIFFERENCES: Final = 5
"""Shown of one broker; ``--json`` has all."""

Wanted = Literal["commit", "rollback", "forget"]
_DONE: Final[Mapping[Wanted, str]] = {"commit": "committed", "rollback": "rolled back", "forget": "forgotten"}

_NOT_OK: Final = {
    1: "rbrollback: it is rolled back",
    2: "rbtimeout: its time was over, and it is rolled back",
    3: "heurhaz: an operator has completed it before",
}

_Key = tuple[str, int, str, str]


class NotDoneError(UnderstudyError):
    """The broker did not do what an operator wanted, though it is not an error of AMQP."""


# -- list -----------------------------------------------------------------------------------------------------------------


def list_of_url(url: str, vhost: str | None) -> dict[str, Any]:
    """Branches in doubt of the broker whose HTTP port is at ``url``, which need not lead.

    Args:
        url: of the HTTP port.
        vhost: only branches of this one; None for all.

    Returns:
        broker, status, primary, in_doubt, left_out: its page ``/dtx``. others: [].

    Raises:
        NothingThereError: no broker answers there, or it has no such page, or not now.
    """
    host, port = place_of(url)
    access = access_of(url)
    where = f"{'https' if access.tls else 'http'}://{host}:{port}/dtx"
    found = ask_page(host, port, "/dtx", PAGE_TIMEOUT_S, access)
    if found is None:
        raise NothingThereError(f"no broker answers at {where}")
    page, why = _checked(found, None)
    if page is None:
        raise NothingThereError(f"{where}: {why}")
    return {**_of_vhost(page, vhost), "others": []}


def list_of_directory(directory: Path, vhost: str | None) -> dict[str, Any]:
    """Branches in doubt of a directory's leader, or of the first broker that runs if none leads, and brokers that differ.

    Returns:
        As :func:`list_of_url`; others: for each other broker that runs, broker, status, error (None, or why its list is not known)
        and differs: [{vhost, xid, state: by the list that is shown, there: by this one}], with None for a branch that is not there.

    Raises:
        NothingThereError: no broker of the directory runs, or none can say.
        ConfigError: a broker's file cannot be read.
    """
    running = _running(directory)
    if not running:
        raise NothingThereError(f"no broker of {directory} runs")
    found = _compared(running, vhost)
    for _ in range(MORE_LOOKS):
        if not any(other["differs"] for other in found["others"]):
            break
        time.sleep(BETWEEN_LOOKS_S)  # it may be on its way: brokers that follow apply later
        found = _compared(running, vhost)
    return found


def _running(directory: Path) -> list[Row]:
    """The brokers of a directory that run, whether or not they answer; whoever leads is the first."""
    running = [row for row in rows_of_directory(directory)["brokers"] if row["status"] not in (DOWN, UNKNOWN)]
    leader = leader_of(running)
    return sorted(running, key=lambda row: row is not leader)


def _compared(running: list[Row], vhost: str | None) -> dict[str, Any]:
    with ThreadPoolExecutor(len(running)) as pool:
        pages = list(zip(running, pool.map(_page_of, running), strict=True))
    shown = next((page for _, (page, _) in pages if page is not None), None)
    if shown is None:
        raise NothingThereError("; ".join(f"{row['broker']} ({row['status']}): {why}" for row, (_, why) in pages))
    others = [
        {
            "broker": row["broker"],
            "status": row["status"],
            "error": why or None,
            "differs": _differences(shown, page, vhost) if page is not None else [],
        }
        for row, (page, why) in pages
        if page is not shown
    ]
    return {**_of_vhost(shown, vhost), "others": others}


def _page_of(row: Row) -> tuple[Row | None, str]:
    if not answers(row):
        return None, "; ".join(row["blockers"])
    ports = row["ports"]
    found = ask_page(
        str(ports.get("http_host") or "127.0.0.1"), ports.get("http"), "/dtx", PAGE_TIMEOUT_S, local_access(ports)
    )
    return _checked(found, row["broker"]) if found is not None else (None, "it does not answer")


def _checked(found: tuple[int, Row], broker: str | None) -> tuple[Row | None, str]:
    """(the page, "") of a broker that has one and is the one that was meant; else (None, why)."""
    code, page = found
    if code == 404:
        return None, "its version knows no distributed transactions: it has no page /dtx"
    if code != 200:
        return None, str(page.get("error", f"HTTP status {code}"))
    if "in_doubt" not in page or "broker" not in page:
        return None, "what answers there is no broker"
    if broker is not None and page["broker"] != broker:
        return None, f"broker {page['broker']} answers in its place"
    return page, ""


def _of_vhost(page: Row, vhost: str | None) -> Row:
    if vhost is None:
        return page
    return {**page, "in_doubt": [branch for branch in page["in_doubt"] if branch["vhost"] == vhost]}


def _key(branch: Mapping[str, Any]) -> _Key:
    """The order of the page; hexadecimal digits sort as the bytes do."""
    return branch["vhost"], branch["format_id"], branch["global_id_hex"], branch["branch_id_hex"]


def _differences(shown: Row, other: Row, vhost: str | None) -> list[dict[str, Any]]:
    """By state only: counts may differ, since a broker that was restarted has lost what was transient."""
    here, there = ({_key(branch): branch for branch in page["in_doubt"]} for page in (shown, other))
    # Of what is behind the last row of a page that was cut off nothing is known.
    ends = [max(rows) for page, rows in ((shown, here), (other, there)) if page["left_out"]]
    found = []
    for key in sorted(here.keys() | there.keys()):
        ours, theirs = here.get(key), there.get(key)
        state, other_state = (branch["state"] if branch is not None else None for branch in (ours, theirs))
        wanted = vhost in (None, key[0]) and all(key <= end for end in ends)
        if wanted and state != other_state:
            named = ours or theirs
            assert named is not None
            found.append({"vhost": named["vhost"], "xid": named["xid"], "state": state, "there": other_state})
    return found


def list_text(found: Mapping[str, Any]) -> str:
    """The same for people."""
    branches = found["in_doubt"]
    lines = [f"{found['broker']} ({found['status']}{_leader(found)}):"]
    if branches:
        head = ["VHOST", "XID", "STATE", "SINCE", "AGE", "IN", "OUT", "QUEUES"]
        lines += ["", *table(head, [_cells(branch) for branch in branches])]
    elif not found["left_out"]:
        lines[0] += " no branch is in doubt"
    if found["left_out"]:
        lines.append(f"  and {found['left_out']} more of any vhost, which the page left out")
    same = [other["broker"] for other in found["others"] if not other["differs"] and other["error"] is None]
    if same:
        lines += ["", f"the same on {', '.join(same)}"]
    return "\n".join(map(escaped, [*lines, *_not_the_same(found)])) + "\n"


def _not_the_same(found: Mapping[str, Any]) -> list[str]:
    others = [line for other in found["others"] for line in _other(found["broker"], other)]
    return ["", "not the same:", *others] if others else []


def _leader(found: Mapping[str, Any]) -> str:
    if found["primary"] in (None, found["broker"]):
        return ""
    return f", primary is {found['primary']}"


def _cells(branch: Mapping[str, Any]) -> list[str]:
    queues = ", ".join(branch["queues"])
    if branch["queues_left_out"]:
        queues += f" and {branch['queues_left_out']} more"
    prepared = branch["state"] == PREPARED
    return [
        branch["vhost"],
        branch["xid"],
        branch["state"] if prepared else f"{branch['state']} by hand",
        branch["since"][:19].replace("T", " ") + "Z",
        _age(branch["age_s"]),
        *(str(branch[count]) if prepared else "-" for count in ("enqueues", "dequeues")),  # over, and not remembered
        queues or "-",
    ]


def _age(seconds: float) -> str:
    """The two largest units: ``3 d 4 h``, ``12 s``."""
    whole = int(seconds)
    for unit, name, part, part_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // part} {part_name}"
    return f"{whole} s"


def _other(shown_broker: str, other: Mapping[str, Any]) -> list[str]:
    who = f"  {other['broker']} ({other['status']})"
    if other["error"] is not None:
        return [f"{who}: its list is not known: {other['error']}"]
    differs: Sequence[Mapping[str, Any]] = other["differs"]
    lines = [
        f"{who}: branch {each['xid']} in vhost '{each['vhost']}' is {each['there'] or 'not there'}, "
        f"and on {shown_broker} it is {each['state'] or 'not there'}"
        for each in differs[:MAX_DIFFERENCES]
    ]
    if len(differs) > MAX_DIFFERENCES:
        lines.append(f"{who}: and {len(differs) - MAX_DIFFERENCES} more branches")
    return lines


# -- show ----------------------------------------------------------------------------------------------------------------


def only(found: dict[str, Any], xid: Xid) -> dict[str, Any]:
    """The rows of a list for one xid, which may name a branch in each vhost.

    Raises:
        NothingThereError: nothing: no such branch is in doubt there.
    """
    text = str(xid)
    rows = [branch for branch in found["in_doubt"] if branch["xid"] == text]
    others = [
        {**other, "differs": [each for each in other["differs"] if each["xid"] == text]} for other in found["others"]
    ]
    if not rows and not any(other["differs"] for other in others):
        left_out = f"; its page left out {found['left_out']} branches" if found["left_out"] else ""
        raise NothingThereError(f"no branch {text} is in doubt on {found['broker']}{left_out}")
    return {**found, "in_doubt": rows, "left_out": 0, "others": others}


def show_text(found: Mapping[str, Any]) -> str:
    """The same for people."""
    lines = [f"{found['broker']} ({found['status']}{_leader(found)}):"]
    for branch in found["in_doubt"]:
        vhost, xid, state, since, age, enqueues, dequeues, queues = _cells(branch)
        shown = {
            "branch": xid,
            "vhost": vhost,
            "state": state,
            "since": f"{since} ({age} ago)",
            "enqueues": enqueues,
            "dequeues": dequeues,
            "queues": queues,
        }
        if branch["state"] != PREPARED:  # what it did is over, and not remembered
            for key in ("enqueues", "dequeues", "queues"):
                del shown[key]
        lines += ["", *(f"  {key:10}{value}" for key, value in shown.items())]
    return "\n".join(map(escaped, [*lines, *_not_the_same(found)])) + "\n"


# -- commit, rollback, forget ---------------------------------------------------------------------------------------------


def address_of(
    url: str | None, directory: Path | None, *, user: str | None, password: str | None, vhost: str | None
) -> AmqpAddress:
    """Whom to ask, and as whom.

    Args:
        url: of any broker of the group; None for the default one, or that of ``directory``.
        directory: of a cluster or of one broker, whose leader, or a broker that knows it, is looked for.
        user: instead of the URL's.
        password: instead of the URL's. If neither says, the environment variable UNDERSTUDY_PASSWORD.
        vhost: instead of the URL's.

    Raises:
        AmqpUrlError: ``url`` is none.
        NothingThereError: no broker of ``directory`` answers.
    """
    address = AmqpAddress() if url is None else AmqpAddress.parse(url)
    if directory is not None:
        address = _address_in(directory)
    return attrs.evolve(
        address,
        user=address.user if user is None else user,
        password=next(
            (each for each in (password, address.password) if each is not None), os.environ.get(PASSWORD_VARIABLE)
        ),
        vhost=address.vhost if vhost is None else vhost,
    )


def _address_in(directory: Path) -> AmqpAddress:
    row = next(filter(answers, _running(directory)), None)  # any, if none of them leads: it names the leader
    if row is None:
        raise NothingThereError(f"no broker of {directory} answers")
    return AmqpAddress(host=row["ports"].get("host") or "127.0.0.1", port=row["port"])


def decide(address: AmqpAddress, xid: Xid, wanted: Wanted) -> dict[str, Any]:
    """Have a prepared branch committed or rolled back without its transaction manager, or a completed one forgotten.

    Args:
        address: of a broker of the group, and the vhost of the branch.
        xid: which.
        wanted: what shall be done with it.

    Returns:
        vhost, xid, done (committed, rolled back, forgotten), amqp (host and port of the leader that did it).

    Raises:
        NotConnectedError, CallRefusedError, NotDoneError: nothing was done; why.
        OutcomeUnknownError: the answer was lost.
    """
    branch = f"branch {xid} in vhost '{address.vhost}'"
    done = _DONE[wanted]
    ids = (xid.format_id, xid.global_id, xid.branch_id)
    with connect(address) as caller:
        if caller.capabilities.get(CAPABILITY) is not True:
            raise NotDoneError(f"{caller.address} knows no distributed transactions: it does not announce {CAPABILITY}")
        try:
            if wanted == "forget":
                (status,) = caller.call(DTX_FORGET, *ids)
            else:
                (status,) = caller.call(DTX_COMPLETE, *ids, wanted == "commit")
        except OutcomeUnknownError as error:
            raise OutcomeUnknownError(f"{branch}: {error}. See: understudy dtx list") from error
        except CallRefusedError as error:
            raise CallRefusedError(error.reply_code, f"{branch} is not {done} by this: {error}") from error
    if status != 0:
        raise NotDoneError(f"{branch} is not {done} by this: {_NOT_OK.get(status, f'status {status}')}")
    return {"vhost": address.vhost, "xid": str(xid), "done": done, "amqp": str(caller.address)}


def decided_text(decided: Mapping[str, Any]) -> str:
    """The same in one sentence."""
    branch = f"Branch {decided['xid']} in vhost '{decided['vhost']}'"
    if decided["done"] == _DONE["forget"]:
        return f"{branch} is forgotten (by {decided['amqp']}).\n"
    return (
        f"{branch} is {decided['done']} by hand (by {decided['amqp']}); its transaction manager is told heurhaz until "
        "somebody forgets it.\n"
    )
