"""Pages of the HTTP port: for the server that answers (``server/http_server``) and for plugins that add some.

A page that is the same amount of work on every broker is made at once: its function returns a :class:`Page`. A page that grows with
what a broker holds is made in slices between the turns of the loop: its function is a coroutine that gives *steps* to
:class:`RunsInSlices`, and makes a page of what they return. So a plugin's page might be

    async def links(query: Query) -> Page:
        return Page(200, await slices.run(rows()))
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

_Made = TypeVar("_Made")

Steps = Generator[None, None, _Made]
"""Work in small pieces: a step takes some ten microseconds, and relies on nothing that may change before the next one."""


class Page(NamedTuple):
    """An answer.

    Attributes:
        status: an HTTP status code.
        body: an object, sent as JSON; or bytes, sent as they are.
    """

    status: int
    body: Mapping[str, Any] | bytes
    content_type: str = "application/json"


class BadQueryError(Exception):
    """A parameter of a request's query is not what the page takes: answered 400 with this text, which names it."""


Query = Mapping[str, str]
"""The parameters of a request; of a parameter that was given twice the last value."""

Making = Coroutine[Any, Any, Page]
"""A page that takes long."""

Pages = Mapping[str, Callable[[Query], Page | Making]]
"""Functions by path."""


class RunsInSlices(Protocol):
    """``server/slices.Slices``."""

    async def run(self, steps: Steps[_Made], *, resting: bool = True) -> _Made:
        """Take all ``steps``; returns what they return.

        Args:
            steps: closed if whoever waits for them is cancelled.
            resting: False for a page that is asked for rarely and whose answer is waited for: each pass of the loop has a slice.
        """
