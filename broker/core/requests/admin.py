"""Administration by messages: the reserved exchange ``understudy.admin``.

A request is ``{"command": "status"}``, with the command's arguments beside it. It needs the permission ``admin`` for that command
in the vhost; without it the channel is closed (403). Every other request is answered with an object; one that was refused, with
``{"error": ...}``, and then nothing was done.

Commands are added by plugins: `AdminCommands.add`. An answer says what the broker knows when it is made, and waits for nothing: a
broker that was replaced and does not know it yet answers in its own, older epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from understudy.broker.core.requests.reply import Reply
from understudy.broker.core.requests.request_body import read_object, take_text
from understudy.broker.errors import UnderstudyError
from understudy.broker.plugin_api.plugin_commands import Command, CommandRefusedError, CommandRequest

if TYPE_CHECKING:
    from understudy.broker.core.requests.port import RequestChannel, RequestsPort

ADMIN_EXCHANGE: Final = "understudy.admin"


class CommandTakenError(UnderstudyError):
    """Two plugins bring a command of one name."""


class AdminCommands:
    """The commands of one core, by name."""

    def __init__(self, broker: RequestsPort) -> None:
        self._broker = broker
        self._commands: dict[str, Command] = {"whoami": self._whoami, "status": self._status}

    def add(self, commands: Mapping[str, Command]) -> None:
        """Take these too.

        Raises:
            CommandTakenError: one of these names is taken.
        """
        for name in commands:
            if name in self._commands:
                raise CommandTakenError(f"there are two commands '{name}' for exchange '{ADMIN_EXCHANGE}'")
        self._commands.update(commands)

    def carry_out(self, name: str, request: CommandRequest) -> None:
        """Answer ``request``, now or later."""
        try:
            command = self._commands.get(name)
            if command is None:
                raise CommandRefusedError(f"no command {name!r:.80}; there are {', '.join(sorted(self._commands))}")
            command(request)
        except CommandRefusedError as error:
            request.answer({"error": str(error)})

    def _whoami(self, request: CommandRequest) -> None:
        request.take_nothing()
        request.answer({**self._answerer(), "user": request.user, "vhost": request.vhost})

    def _status(self, request: CommandRequest) -> None:
        request.take_nothing()
        broker = self._broker
        log = broker.log
        request.answer(
            {
                **self._answerer(),
                "clients": broker.counters.clients,
                "log": {"end": log.end, "stable": log.stable, "applied": log.applied},
                "undecided_branches": broker.dtx.undecided,
                "work_refused": broker.work.reason,
                "counters": broker.counters.totals,
                "commands": sorted(self._commands),
            }
        )

    def _answerer(self) -> dict[str, Any]:
        broker = self._broker
        return {"broker": broker.role.name, "epoch": broker.role.epoch, "serving": broker.role.answering}


def take_admin_command(channel: RequestChannel, reply: Reply, body: bytes) -> None:
    """One request.

    Raises:
        PreconditionFailedError: it is malformed.
        AccessRefusedError: the user may not give this command.
    """
    arguments = read_object(ADMIN_EXCHANGE, body)
    name = take_text(ADMIN_EXCHANGE, arguments, "command")
    user, vhost = channel.connection.user, channel.connection.vhost
    assert user is not None
    user.require(vhost, "admin", "command", name)
    request = CommandRequest(arguments=arguments, user=user.name, vhost=vhost, answer=reply.send_json)
    channel.broker.admin.carry_out(name, request)
