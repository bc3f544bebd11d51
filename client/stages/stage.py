"""Stage and Flow: a function with its queue, and an order of stages."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

import attrs

from understudy.client.stages.codec import Codec
from understudy.client.stages.context import Context, sends_here
from understudy.client.stages.core.handling import Rules
from understudy.client.stages.core.retry import Retry
from understudy.client.stages.core.sends import Target
from understudy.client.stages.databases.port import Database
from understudy.client.stages.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")


@attrs.frozen(kw_only=True)
class Signature:
    """Parameters of a stage's function, by its annotations.

    Attributes:
        message: the type of its first parameter.
        database, context: the names of the parameters for these; None if it has none.
        returns: the type of what it returns; type(None) if it returns nothing.
    """

    message: Any
    database: str | None
    context: str | None
    returns: Any


class Stage(Generic[P, R]):
    """A function that is called once for each message of a queue. Calling the stage calls the function, and nothing else.

    Attributes:
        name: of the stage, and of its queue.
        function: as it was written.
    """

    def __init__(
        self,
        function: Callable[P, R],
        name: str,
        *,
        once: bool,
        retry: Retry,
        concurrency: int,
        database: Database | None,
    ) -> None:
        update_wrapper(self, function)
        self.name = name
        self.function = function
        self.once = once
        self.retry = retry
        self.concurrency = concurrency
        self._database = database
        self.flows: dict[str, Stage[..., Any] | None] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<stage {self.name}>"

    @property
    def queue(self) -> str:
        return self.name

    @property
    def blocking(self) -> bool:
        """The function is a ``def``: it runs in a thread."""
        return not inspect.iscoroutinefunction(self.function)

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
        wanted = self._database.parameter(blocking=self.blocking) if self._database is not None else None
        found: dict[str, str] = {}
        for name in names[1:]:
            kind = "context" if hints[name] is Context else "database" if hints[name] is wanted else ""
            if not kind or kind in found:
                raise ConfigurationError(f"{where}: {self._unfit(name, hints[name], wanted, found.get(kind))}")
            found[kind] = name
        return Signature(
            message=hints[names[0]],
            database=found.get("database"),
            context=found.get("context"),
            returns=hints.get("return", type(None)),
        )

    def _unfit(self, name: str, hint: Any, wanted: Any, other: str | None) -> str:
        if other is not None:
            return f"parameters {other!r} and {name!r} are for the same thing, {hint!r}"
        kinds = (
            "Context" if wanted is None else f"Context or, for the database, {wanted.__module__}.{wanted.__qualname__}"
        )
        text = f"parameter {name!r} is of type {hint!r}; after the message come {kinds}"
        return text if wanted is not None else f"{text}; a database is given to Stages(database=...)"

    @cached_property
    def rules(self) -> Rules:
        return Rules(
            stage=self.name,
            queue=self.queue,
            once=self.once,
            database=self.once or self.signature.database is not None,
            retry=self.retry,
            decode=self.codec.decode,
            following=self._following,
        )

    def _following(self, flow: str) -> Target | None:
        return self.flows[flow]

    def check(self) -> None:
        """Everything that can be known before the first message.

        Raises:
            ConfigurationError: the stage cannot run, or its flows do not fit.
        """
        if self.once and self._database is None:
            raise ConfigurationError(
                f"stage {self.name!r} has once=True, which needs a database: Stages(..., database=sqlite('shop.db'))"
            )
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


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
