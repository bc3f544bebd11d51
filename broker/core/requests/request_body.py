"""The body of a request to a reserved exchange: a small JSON object."""

from __future__ import annotations

import json
from typing import Any, Final

from understudy.broker.errors import PreconditionFailedError

MAX_REQUEST_BYTES: Final = 4096


def read_object(exchange: str, body: bytes) -> dict[str, Any]:
    """The object that ``body`` is.

    Raises:
        PreconditionFailedError: it is none, or is longer than `MAX_REQUEST_BYTES`.
    """
    if len(body) > MAX_REQUEST_BYTES:
        raise PreconditionFailedError(
            f"a request to exchange '{exchange}' of {len(body)} bytes; {MAX_REQUEST_BYTES} are the most"
        )
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        found = None
    if not isinstance(found, dict):
        shown = body[:80].decode("utf-8", "replace")
        raise PreconditionFailedError(f"a request to exchange '{exchange}' is a JSON object; {shown!r} is none")
    return found


def take_text(exchange: str, request: dict[str, Any], key: str) -> str:
    """Take the text under ``key`` out of ``request``.

    Raises:
        PreconditionFailedError: it is not there, or no text.
    """
    value = request.pop(key, None)
    if not isinstance(value, str):
        raise PreconditionFailedError(f"a request to exchange '{exchange}' has a text '{key}', not {value!r:.80}")
    return value
