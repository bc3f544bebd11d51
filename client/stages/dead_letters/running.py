"""Running: what each command of ``understudy dlq`` does around its work: connect, tell how far it is, end with a code."""

from __future__ import annotations

import getpass
import json
import secrets
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

import typer

from understudy.client.stages.broker.clock import now_ms
from understudy.client.stages.commands.connection import connected
from understudy.client.stages.core.letter import Action, Letter
from understudy.client.stages.dead_letters.place import Place
from understudy.client.stages.errors import StagesError

T = TypeVar("T")

PROGRESS_EVERY_S: Final = 1.0


class Progress:
    """Prints to standard error how far a long look has come, once a second."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._next_s = time.monotonic() + PROGRESS_EVERY_S

    def __call__(self, seen: int, of: int) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PROGRESS_EVERY_S
            typer.echo(f"{self._queue}: {seen:,} of {of:,}", err=True)


def check_installed() -> None:
    """End the command if the extra of these commands is not installed."""
    try:
        import aio_pika  # noqa: F401, PLC0415  # the extra
    except ImportError as error:
        fail(f"{error}: pip install 'understudy[stages]'", 1)


def letters_of(place: Place, name: str, limit: int | None, *, bodies: bool = True) -> tuple[list[Letter], int]:
    """Letters of a queue, which stay there, and how many it has; none if the queue is not there and was not named."""
    from understudy.client.stages.dead_letters.queue import NoQueueError  # noqa: PLC0415  # needs aio-pika
    from understudy.client.stages.dead_letters.work import look  # noqa: PLC0415

    async def work(connection: Any) -> Any:
        try:
            return await look(connection, name, limit=limit, progress=Progress(name), bodies=bodies)
        except NoQueueError:
            if place.named:
                raise
            return [], 0  # no worker has run yet

    found: tuple[list[Letter], int] = run_with(place, work)
    return found


def run_with(place: Place, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Do ``work`` with a connection; an error of it ends the command."""
    try:
        return attempt(place, work)
    except (StagesError, ValueError) as error:
        fail(str(error), 1)


def attempt(place: Place, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Do ``work`` with a connection, and raise what it raises."""
    return connected(place.addresses, "understudy dlq", work)


def action_of(by: str) -> Action:
    """The action of this command; ``by`` or, if that is empty, of user@host."""
    return Action(by=by or f"{getpass.getuser()}@{socket.gethostname()}", at_ms=now_ms(), token=secrets.token_hex(4))


def print_json(found: dict[str, Any]) -> None:
    """Print an object."""
    typer.echo(json.dumps(found, indent=2))


def tell_dry(yes: bool) -> None:
    """Say that nothing was changed, unless ``yes``."""
    if not yes:
        typer.echo("nothing was changed: --yes does it")


def fail(reason: str, code: int) -> NoReturn:
    """End the command with a reason and a code."""
    typer.echo(f"understudy dlq: {reason}", err=True)
    raise typer.Exit(code)
