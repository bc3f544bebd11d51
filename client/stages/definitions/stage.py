"""Stage and Flow: a function with its queue, and an order of stages."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

import attrs

from understudy.client.stages.core.handling import Rules
from understudy.client.stages.core.retry import Retry
from understudy.client.stages.core.sends import Target
from understudy.client.stages.databases.port import Database, is_database
from understudy.client.stages.definitions.codec import Codec
from understudy.client.stages.definitions.context import Context, sends_here
from understudy.client.stages.errors import ConfigurationError, DemarcationError

P = ParamSpec("P")
R = TypeVar("R")


@attrs.frozen(kw_only=True)
class Signature:
    """Parameters of a stage's function, by its annotations.

    Attributes:
        message: the type of its first parameter.
        database, context: the names of the parameters for these; None if it has none.
        database_kind: the type of the parameter for the database; None if it has none.
        returns: the type of what it returns; type(None) if it returns nothing.
    """

    message: Any
    database: str | None
    context: str | None
    returns: Any
    database_kind: Any = None


def check_concurrency(stage: str, concurrency: int) -> None:
    """Refuse a number of messages at once that no stage can have.

    Raises:
        ConfigurationError: ``concurrency`` is not 1 to 1,000.
    """
    if not 1 <= concurrency <= 1000:
        raise ConfigurationError(f"stage {stage!r}: concurrency = {concurrency}; 1 to 1,000 are allowed")


class Stage(Generic[P, R]):
    """A function that is called once for each message of a queue. Calling the stage calls the function, and nothing else.

    Attributes:
        name: of the stage, and of its queue.
        function: as it was written.
        blocking: the function is a ``def``: it runs in a thread.
        concurrency: so many messages at once, 1 to 1,000.
        application, version: of the program that declares the stage; "" if unknown.
    """

    def __init__(
        self,
        function: Callable[P, R],
        name: str,
        *,
        once: bool,
        xa: bool,
        retry: Retry,
        concurrency: int,
        database: Database | None,
        precheck: bool | None = None,
        key: Callable[[Any], str] | None = None,
        application: str = "",
        version: str = "",
    ) -> None:
        update_wrapper(self, function)
        self.name = name
        self.function = function
        self.blocking = not inspect.iscoroutinefunction(function)
        self.once = once
        self.xa = xa
        self.retry = retry
        self.concurrency = concurrency
        self.precheck = precheck
        self.key = key
        self._database = database
        self.flows: dict[str, Stage[..., Any] | None] = {}
        self.application = application
        self.version = version

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<stage {self.name}>"

    @property
    def queue(self) -> str:
        return self.name

    def send(self, message: object, *, after: timedelta | float | None = None) -> str:
        """Send a message to this stage, from a stage or an initiation; it leaves with the commit.

        ``after`` is a time, or seconds, 0 to 30 days: the message comes so much later.

        Returns:
            The message's id.

        Raises:
            DemarcationError: neither a stage nor an initiation runs here.
        """
        return sends_here(f"a message for stage {self.name!r}").send(self, message, after)

    def encode(self, message: object) -> bytes:
        return self.codec.encode(message)

    @cached_property
    def codec(self) -> Codec:
        return Codec(self.signature.message, f"stage {self.name!r}")

    @cached_property
    def signature(self) -> Signature:
        """Read from the annotations.

        Raises:
            ConfigurationError: an annotation is missing, or of a type that a stage is not given.
        """
        where = f"stage {self.name!r}, function {self.function.__qualname__}"
        try:
            hints = typing.get_type_hints(self.function)
        except Exception as error:
            raise ConfigurationError(f"{where}: an annotation cannot be read: {error}") from error
        names = list(inspect.signature(self.function).parameters)
        if not names:
            raise ConfigurationError(f"{where} has no parameter; the first one is the message")
        for name in names:
            if name not in hints:
                raise ConfigurationError(f"{where}: parameter {name!r} has no annotation")
        wanted = self._database.parameters(blocking=self.blocking) if self._database is not None else ()
        kinds = {name: typing.get_origin(hints[name]) or hints[name] for name in names[1:]}
        self._check_one_database(where, [(name, kind) for name, kind in kinds.items() if is_database(kind)])
        found: dict[str, str] = {}
        for name, hint in kinds.items():
            kind = "context" if hint is Context else "database" if hint in wanted else ""
            if not kind or kind in found:
                raise ConfigurationError(f"{where}: {self._unfit(name, hint, wanted, found.get(kind))}")
            found[kind] = name
        return Signature(
            message=hints[names[0]],
            database=found.get("database"),
            context=found.get("context"),
            returns=hints.get("return", type(None)),
            database_kind=kinds[found["database"]] if "database" in found else None,
        )

    def _check_one_database(self, where: str, asked: list[tuple[str, Any]]) -> None:
        if len(asked) > 1:
            named = " and ".join(f"{name!r} ({_full_name(kind)})" for name, kind in asked)
            of = f", which is {self._database.address}" if self._database is not None else ""
            raise ConfigurationError(
                f"{where}: parameters {named} are two databases; a stage has one{of}. "
                f"What else it reads, it opens itself, outside of its transaction"
            )

    def _unfit(self, name: str, hint: Any, wanted: tuple[Any, ...], other: str | None) -> str:
        if other is not None:
            return f"parameters {other!r} and {name!r} are for the same thing, {hint!r}"
        databases = " or ".join(map(_full_name, wanted))
        kinds = f"Context or, for the database, {databases}" if wanted else "Context"
        text = f"parameter {name!r} is of type {hint!r}; after the message come {kinds}"
        return text if wanted else f"{text}; a database is given to Stages(database=...)"

    @cached_property
    def rules(self) -> Rules:
        return Rules(
            stage=self.name,
            queue=self.queue,
            once=self.once,
            xa=self.xa,
            database=self.once or self.xa or self.signature.database is not None,
            retry=self.retry,
            decode=self.codec.decode,
            following=self.following,
            precheck=self._prechecks,
            key=self.key,
            application=self.application,
            version=self.version,
        )

    @property
    def _prechecks(self) -> bool:
        """By default where a lost commit of the broker would leave the database's done: with a database, without an inbox."""
        has_database = self.once or self.signature.database is not None
        return has_database and not self.xa and (not self.once if self.precheck is None else self.precheck)

    def set_concurrency(self, concurrency: int) -> None:
        """Take so many messages at once in this process, instead of what is declared.

        Raises:
            ConfigurationError: the stage cannot have so many.
        """
        check_concurrency(self.name, concurrency)
        self.concurrency = concurrency
        self.check()

    def following(self, flow: str) -> Target | None:
        """The stage after this one in a flow; raises KeyError if this one is not of it."""
        return self.flows[flow]

    def check_joins(self, first: Stage[..., Any]) -> None:
        """Check that the stage can run in the transaction of another one.

        Raises:
            DemarcationError: names both.
        """
        asked, given = self.signature.database_kind, first.signature.database_kind
        if given is None and first.rules.database and self._database is not None:
            given = self._database.parameters(blocking=first.blocking)[0]
        why = ""
        if (self.once, self.xa) != (first.once, first.xa) and (self.once or self.xa):
            why = f"both need {'xa=True' if self.xa else 'once=True'}"
        elif asked is not None and (asked is not given or self.blocking != first.blocking):
            why = f"its database is a {_full_name(asked)}; there it is {_full_name(given) if given else 'none'}"
        if why:
            raise DemarcationError(f"stage {self.name!r} cannot run in the transaction of stage {first.name!r}: {why}")

    def check(self) -> None:
        """Everything that can be known before the first message.

        Raises:
            ConfigurationError: the stage cannot run, or its flows do not fit.
        """
        if self.once and self._database is None:
            raise ConfigurationError(
                f"stage {self.name!r} has once=True, which needs a database: Stages(..., database=sqlite('shop.db'))"
            )
        if self.xa:
            self._check_xa()
        self._check_key()
        _ = self.rules
        returns = self.signature.returns
        for flow, following in self.flows.items():
            if following is None and returns not in {type(None), typing.NoReturn}:
                raise ConfigurationError(
                    f"stage {self.name!r} returns {_name(returns)}, and no stage follows it in flow {flow!r}"
                )
            if following is not None and not _fits(returns, following.signature.message):
                raise ConfigurationError(
                    f"flow {flow!r}: stage {self.name!r} returns {_name(returns)}, "
                    f"and stage {following.name!r} takes {_name(following.signature.message)}"
                )

    def _check_xa(self) -> None:
        where = f"stage {self.name!r} has xa=True"
        if self._database is None:
            raise ConfigurationError(f"{where}, which needs a database: Stages(..., database=postgresql('...'))")
        if self._database.one_writer:
            raise ConfigurationError(
                f"{where}, and {self._database.address} cannot prepare a transaction: use once=True, or postgresql('...')"
            )
        if self.once:
            raise ConfigurationError(f"{where} and once=True: with xa=True no inbox and no outbox are needed")
        if self.precheck:
            raise ConfigurationError(f"{where} and precheck=True: with xa=True the broker is asked by its PREPARE")
        if not self.blocking:
            raise ConfigurationError(f"{where}, and its function is an `async def`: write it as a `def`")

    def _check_key(self) -> None:
        """A key keeps an order only with an inbox, and with one message at a time."""
        if self.key is None:
            return
        if not self.once:
            raise ConfigurationError(
                f"stage {self.name!r} has key=, whose lines are in the database: it needs once=True"
            )
        if self.concurrency != 1:
            raise ConfigurationError(
                f"stage {self.name!r} has key= and concurrency={self.concurrency}: one worker takes one message at a time, so "
                f"that the order is kept"
            )


class Flow:
    """Stages in an order: what one returns is the message of the next. Made by ``Stages.flow``."""

    def __init__(self, name: str, stages: tuple[Stage[..., Any], ...]) -> None:
        self.name = name
        self.stages = stages

    def send(self, message: object, *, after: timedelta | float | None = None) -> str:
        """Begin a new passage, from a stage or an initiation; the message leaves with the commit.

        Returns:
            The id of the passage, `Context.flow_id` in each of its stages.
        """
        return sends_here(f"flow {self.name!r}").begin_flow(self.name, self.stages[0], message, after)


def _fits(returns: Any, message: Any) -> bool:
    """A stage may return the next one's message, or nothing and call ``ctx.next``; an unknown type is looked at later."""
    if returns in {type(None), Any} or returns == message:
        return True
    kinds = [each for each in typing.get_args(returns) if each is not type(None)] or [returns]
    if not all(isinstance(each, type) for each in kinds) or not isinstance(message, type):
        return True
    return all(issubclass(each, message) for each in kinds)


def _full_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
