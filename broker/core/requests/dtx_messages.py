"""Distributed transactions by messages: every verb of class 100, for clients that cannot send a class of their own.

A request is a message to the exchange ``understudy.dtx``::

    {"verb": "commit", "xid": {"format_id": 0, "global_id": "order%2017", "branch_id": "b1"}, "one_phase": true}

What it does, what it is refused for and what its answer waits for are those of the method (``distributed.py``): here the one form
is only translated into the other. A refusal closes the channel, as it does there: what a client has sent behind a ``start`` that
is refused must not be done outside of any branch. For clients: docs/dtx.md, Messages instead of methods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from understudy.broker.amqp.methods import BASIC_PUBLISH
from understudy.broker.core.requests.reply import Reply
from understudy.broker.core.requests.request_body import read_object, take_text
from understudy.broker.errors import DtxCommandInvalidError, PreconditionFailedError
from understudy.broker.transactions.xa_status import XaStatus
from understudy.broker.transactions.xid import Xid

if TYPE_CHECKING:
    from understudy.broker.core.requests.port import RequestChannel

DTX_EXCHANGE: Final = "understudy.dtx"
MAX_LONG: Final = (1 << 32) - 1
_ID: Final = re.compile(r"(?:[A-Za-z0-9_.~-]|%[0-9A-Fa-f]{2})*")

Described = Mapping[str, Any]


def _status(status: int = 0) -> Described:
    """Of a verb that answers with a status; select answers with nothing else than that it is done."""
    return {"status": status, "name": XaStatus(status).name.lower()}


def _prepared(status: int, transaction: str) -> Described:
    return {**_status(status), "transaction": transaction}


def _timeout(timeout_s: int) -> Described:
    return {"timeout": timeout_s}


def _in_doubt(more: bool, packed: bytes) -> Described:
    """Of recover: the list that `DtxManager.in_doubt` packs."""
    rows = []
    at = 0
    while at < len(packed):
        xid, end = Xid.decode(packed, at + 1)
        rows.append({"state": packed[at], "xid": xid_parts(xid)})
        at = end
    return {"more": more, "in_doubt": rows}


def xid_parts(xid: Xid) -> dict[str, Any]:
    """How an xid is written in a message; the ids as in its text (docs/dtx.md, Names)."""
    return {
        "format_id": xid.format_id,
        "global_id": quote_from_bytes(xid.global_id, ""),
        "branch_id": quote_from_bytes(xid.branch_id, ""),
    }


def _xid(value: Any) -> tuple[int, bytes, bytes]:
    """The parts, as the method would bring them: how long an id may be is judged by the verb."""
    if isinstance(value, dict) and value.keys() == {"format_id", "global_id", "branch_id"}:
        format_id, global_id, branch_id = value["format_id"], value["global_id"], value["branch_id"]
        if _is_long(format_id) and _is_id(global_id) and _is_id(branch_id):
            return format_id, unquote_to_bytes(global_id), unquote_to_bytes(branch_id)
    raise PreconditionFailedError(
        f"an xid is an object of format_id (a number), global_id and branch_id (letters, digits, -_.~ and %XX), "
        f"not {value!r:.80}"
    )


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_LONG


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _flag(name: str, request: dict[str, Any]) -> bool:
    value = request.pop(name, False)
    if not isinstance(value, bool):
        raise PreconditionFailedError(f"'{name}' is true or false, not {value!r:.80}")
    return value


def _seconds(name: str, request: dict[str, Any]) -> int:
    value = request.pop(name, None)
    if not _is_long(value):
        raise PreconditionFailedError(f"'{name}' is a whole number of seconds, not {value!r:.80}")
    assert isinstance(value, int)
    return value


def _choice(name: str, request: dict[str, Any]) -> bool:
    """A flag that has no default: an operator says which way."""
    if name not in request:
        raise PreconditionFailedError(f"'{name}' is true or false, and must be given")
    return _flag(name, request)


Reading = Callable[[str, dict[str, Any]], Any]

# What follows the xid in the arguments of the method, by name; and what its answer says.
_VERBS: Final[dict[str, tuple[dict[str, Reading], Callable[..., Described]]]] = {
    "select": ({}, _status),
    "start": ({"join": _flag, "resume": _flag}, _status),
    "end": ({"fail": _flag, "suspend": _flag}, _status),
    "prepare": ({}, _prepared),
    "commit": ({"one_phase": _flag}, _status),
    "rollback": ({}, _status),
    "recover": ({}, _in_doubt),
    "forget": ({}, _status),
    "get-timeout": ({}, _timeout),
    "set-timeout": ({"timeout": _seconds}, _status),
    "complete": ({"commit": _choice}, _status),
}


class MessageAsker:
    """The sender of a verb by a message; see ``distributed.Asker``."""

    __slots__ = ("_describe", "_reply")

    key = BASIC_PUBLISH

    def __init__(self, reply: Reply, describe: Callable[..., Described]) -> None:
        self._reply = reply
        self._describe = describe

    def answer(self, *values: Any) -> bool:
        return self._reply.send_json(self._describe(*values))


def read_request(body: bytes) -> tuple[str, tuple[Any, ...]]:
    """The verb, and its arguments as the method has them.

    Raises:
        DtxCommandInvalidError: there is no such verb.
        PreconditionFailedError: the request is malformed.
    """
    request = read_object(DTX_EXCHANGE, body)
    verb = take_text(DTX_EXCHANGE, request, "verb")
    if verb not in _VERBS:
        raise DtxCommandInvalidError(f"no verb {verb!r:.80}; there are {', '.join(_VERBS)}")
    args: list[Any] = []
    if verb == "recover":
        after = request.pop("after", None)
        args.append(b"" if after is None else Xid.checked(*_xid(after)).encode())
    elif verb != "select":
        args += _xid(request.pop("xid", None))
    args += [read(name, request) for name, read in _VERBS[verb][0].items()]
    if request:
        raise PreconditionFailedError(f"{next(iter(request))!r:.80} is nothing that {verb} takes")
    return verb, tuple(args)


def take_dtx_message(channel: RequestChannel, reply: Reply, body: bytes) -> None:
    """Carry out one verb on ``channel``.

    Raises:
        SoftError: see `read_request`, and the verb.
    """
    verb, args = read_request(body)
    channel.distributed.carry_out(verb, MessageAsker(reply, _VERBS[verb][1]), args)
