"""``understudy step-down``, ``expel`` and ``admit``: an operator's word to the primary of a group (docs/operations.md).

A command goes to the primary as a message to the exchange ``understudy.admin``, so the permissions of the vhost hold. With
``--config`` and without a primary, `expel` and `admit` change the coordination store themselves.

Exit codes: 0 done; 1 refused, nothing was changed; 2 wrong usage; 3 it is not known whether it was done.
"""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import attrs
import typer

from understudy.broker.command_line.amqp_address import AmqpAddress, AmqpUrlError
from understudy.broker.command_line.amqp_call import (
    CallRefusedError,
    NotConnectedError,
    OutcomeUnknownError,
    connect,
)
from understudy.broker.command_line.dtx_command import address_of
from understudy.broker.config import Config, load
from understudy.broker.core.requests.admin import ADMIN_EXCHANGE
from understudy.broker.errors import UnderstudyError
from understudy.broker.printable import escaped
from understudy.ha.operators.bars import admission, expulsion_without_primary
from understudy.ha.status import since_text
from understudy.ha.store.coordination import Bar, BrokerId, BrokerInfo, GroupState, StoreAdmin
from understudy.ha.store.edge.stores import store_admin

EXIT_UNKNOWN: Final = 3
LEADS_WITHIN_S: Final = 30.0
LOOK_EVERY_S: Final = 0.02
_SHOWS_IT_STILL: Final = (
    ". ZooKeeper shows this broker as running; of a broker that was killed it does so for up to coordination.session_s"
)

_Amqp = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="amqp://user:password@host:port/vhost of any broker of the group.",
        show_default="amqp://guest:guest@127.0.0.1:5672/",
    ),
]
_Data = Annotated[Path | None, typer.Option(help="The directory of a cluster, or of one broker. Its primary is asked.")]
_Config = Annotated[
    Path | None,
    typer.Option(
        help="A broker's TOML file: its group's primary is asked, or without one the store is changed itself."
    ),
]
_Vhost = Annotated[str | None, typer.Option(help="In which the user has permission.", show_default="the URL's, or /")]
_User = Annotated[
    str | None, typer.Option(help="With admin permission for this command.", show_default="the URL's, or guest")
]
_Password = Annotated[
    str | None, typer.Option(help="Of the user.", show_default="the URL's, or $UNDERSTUDY_PASSWORD, or guest")
]
_Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]


class CommandNotDoneError(UnderstudyError):
    """The primary, or the state of the group, speaks against it; nothing was changed."""


@attrs.frozen
class _Place:
    """Where a command goes: to a broker, or without one to the store of ``config``."""

    address: AmqpAddress
    config: Config | None


def step_down(
    to: Annotated[
        str | None, typer.Option(help="The broker that is to lead.", show_default="the most complete backup")
    ] = None,
    amqp: _Amqp = None,
    data: _Data = None,
    vhost: _Vhost = None,
    user: _User = None,
    password: _Password = None,
    as_json: _Json = False,
) -> None:
    """Have the primary hand over to a backup, and wait until that one leads. Nothing is lost; clients are told where to go.

    Exit codes: 0 done; 1 refused, the primary leads on; 3 it is not known who leads.
    """
    address = _place(amqp, data, None, user, password, vhost).address
    began = time.monotonic()
    arguments = {"to": to} if to is not None else {}
    try:
        answer = _ask(address, "step-down", arguments)
    except OutcomeUnknownError as error:
        if "has handed over to" not in error.said:
            _unknown(f"step-down: {error}. See: understudy status")
        answer = {}  # its words are the last that the former primary said, and enough
    leader, epoch = _new_leader(address, answer)
    took_s = round(time.monotonic() - began, 3)
    done = {**answer, "primary": leader, "epoch": epoch, "took_s": took_s}
    former = f"{answer['broker']} has handed over to" if answer else "the new primary is"
    _show(done, f"{former} {leader}, which leads epoch {epoch} ({took_s} s)", as_json=as_json)


def _bar_command(name: str, told: str, about: str) -> Callable[..., None]:
    """A command that changes which brokers may be in the in-sync set; ``told`` and ``about`` are said of a broker and of itself."""

    def command(
        broker: Annotated[str, typer.Argument(help="Which.")],
        amqp: _Amqp = None,
        data: _Data = None,
        config: _Config = None,
        vhost: _Vhost = None,
        user: _User = None,
        password: _Password = None,
        as_json: _Json = False,
    ) -> None:
        done = _change(name, broker, _place(amqp, data, config, user, password, vhost))
        _show(done, f"{broker} {told}{_was(done)}: {_set_text(done)}", as_json=as_json)

    command.__doc__ = f"{about}\n\nExit codes: 0 done, or it was so; 1 refused, nothing was changed; 3 it is not known."
    return command


expel = _bar_command(
    "expel", "is expelled", "Keep a broker out of the in-sync set, whatever it does, until ``understudy admit``."
)
admit = _bar_command(
    "admit",
    "may join",
    "Let a broker that was expelled join again: it is caught up, and then in the in-sync set.",
)


def _was(done: dict[str, Any]) -> str:
    return "" if done["changed"] else " already"


def _set_text(done: dict[str, Any]) -> str:
    return f"in-sync {{{', '.join(done['in_sync'])}}}, min_insync {done['min_insync']} (said by {done['broker']})"


def _show(done: dict[str, Any], text: str, *, as_json: bool) -> None:
    print(json.dumps(done) if as_json else escaped(text), flush=True)  # a command prints


def _unknown(text: str) -> None:
    print(f"understudy: {text}", flush=True)  # as above
    raise typer.Exit(EXIT_UNKNOWN)


# -- the primary ----------------------------------------------------------------------------------------------------------


def _place(
    amqp: str | None,
    data: Path | None,
    config: Path | None,
    user: str | None,
    password: str | None,
    vhost: str | None,
) -> _Place:
    if sum(each is not None for each in (amqp, data, config)) > 1:
        raise typer.BadParameter("give one of --amqp, --data and --config", param_hint="--amqp")
    settings = load(config, os.environ) if config is not None else None
    try:
        address = address_of(amqp, data, user=user, password=password, vhost=vhost)
    except AmqpUrlError as error:
        raise typer.BadParameter(str(error), param_hint="--amqp") from error
    if settings is not None:
        address = attrs.evolve(address, host=settings.amqp.host, port=settings.amqp.port)
    return _Place(address, settings)


def _ask(address: AmqpAddress, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The primary's answer to ``command``.

    Raises:
        NotConnectedError, CallRefusedError, CommandNotDoneError: nothing was changed, and why.
        OutcomeUnknownError: the answer was lost.
    """
    with connect(address) as caller:
        try:
            raw = caller.ask(ADMIN_EXCHANGE, json.dumps({"command": command, **arguments}).encode())
        except CallRefusedError as error:
            raise CallRefusedError(error.reply_code, f"{command} is not done: {error}") from error
        answer = json.loads(raw)
    if "error" in answer:
        raise CommandNotDoneError(f"{command} is not done: {caller.address} says: {answer['error']}")
    found: dict[str, Any] = answer
    return found


def _new_leader(address: AmqpAddress, answer: dict[str, Any]) -> tuple[BrokerId, int]:
    """Wait until a broker serves; returns which, and its epoch. ``answer``: of the former primary, empty if it was lost."""
    if answer:
        named = AmqpAddress.parse(answer["amqp"])
        address = attrs.evolve(address, host=named.host, port=named.port)
    deadline = time.monotonic() + LEADS_WITHIN_S
    while True:
        try:
            said = _ask(address, "whoami", {})
        except CallRefusedError:  # a user who may not ask that: the refusal comes from a broker that serves
            if answer:
                return answer["successor"], answer["epoch"] + 1
            raise
        except (NotConnectedError, OutcomeUnknownError) as error:
            if time.monotonic() >= deadline:
                _unknown(f"step-down: nobody leads after {LEADS_WITHIN_S:.0f} s: {error}")
            time.sleep(LOOK_EVERY_S)
            continue
        return str(said["broker"]), int(said["epoch"])


# -- expel and admit ------------------------------------------------------------------------------------------------------


def _change(command: str, broker: BrokerId, place: _Place) -> dict[str, Any]:
    address = place.address
    if place.config is not None:
        store = _store_of(place.config)
        group, brokers = store.read(hanging_too=True)
        if group is None:
            raise CommandNotDoneError(f"the coordination store knows no group '{place.config.broker.group}'")
        primary = brokers.get(group.primary)
        if primary is None or not primary.alive:
            return _change_store(command, broker, store, group, brokers)
        named = _stored_address(primary)
        address = attrs.evolve(address, host=named.host, port=named.port)
    try:
        return _ask(address, command, {"broker": broker})
    except NotConnectedError as error:
        if place.config is not None:
            hint = _SHOWS_IT_STILL if place.config.coordination.kind == "zookeeper" else ""
            raise NotConnectedError(f"{error}{hint}") from error
        raise NotConnectedError(
            f"{error}. If no primary runs, --config FILE of any broker changes the coordination store itself"
        ) from error
    except OutcomeUnknownError as error:
        _unknown(f"{command} {broker}: {error}. See: understudy status")
        raise


def _stored_address(primary: BrokerInfo) -> AmqpAddress:
    """Where the primary listens. An operator may have edited its row: no other broker is to get the command.

    Raises:
        CommandNotDoneError: the store shows no address.
    """
    with suppress(AmqpUrlError):
        found = AmqpAddress.parse(f"amqp://{primary.amqp}")
        if str(found) == primary.amqp.lower():
            return found
    why = f": {primary.blockers}" if not primary.amqp and primary.blockers else ""
    raise CommandNotDoneError(
        f"{primary.broker} leads, and the coordination store shows no address of it, but {primary.amqp!r}{why}. It shows "
        "itself again while it runs; --amqp asks it without the store"
    )


def _store_of(config: Config) -> StoreAdmin:
    if not config.plugins.get("ha", False):
        raise CommandNotDoneError("plugins.ha is not switched on in this configuration: there is no group")
    return store_admin(config)


def _change_store(
    command: str, broker: BrokerId, store: StoreAdmin, group: GroupState, brokers: dict[BrokerId, BrokerInfo]
) -> dict[str, Any]:
    """Write the store while no broker leads. If a broker is promoted meanwhile, the write fails, and then there is a primary."""
    by = f"{getpass.getuser()} by command, while no primary ran"
    bar = Bar(broker, by, since_text(time.time_ns() // 1_000_000))
    wanted = expulsion_without_primary(group, brokers, bar) if command == "expel" else admission(group, brokers, broker)
    if wanted is not group:
        wanted = store.replace(group, attrs.evolve(wanted, version=group.version + 1))
    return {
        "broker": "the coordination store",
        "epoch": wanted.epoch,
        "expelled" if command == "expel" else "admitted": broker,
        "changed": wanted is not group,
        "in_sync": list(wanted.members),
        "min_insync": wanted.min_insync,
        "barred": [each.broker for each in wanted.barred],
    }
