"""RequestsPort: the leading broker, and the channels that ask, as requests by message see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from understudy.broker.core.branches.port import BranchesPort
from understudy.broker.security import User

if TYPE_CHECKING:
    from understudy.broker.core.requests.admin import AdminCommands
    from understudy.broker.core.requests.dtx_messages import MessageAsker
    from understudy.broker.core.requests.reply import Reply


class RequestsPort(BranchesPort, Protocol):
    """See ``Broker`` for each name."""

    @property
    def admin(self) -> AdminCommands: ...


class AskingConnection(Protocol):
    """The connection of a channel that asks (``Connection``)."""

    @property
    def user(self) -> User | None: ...
    @property
    def vhost(self) -> str: ...


class AsksOutcomes(Protocol):
    """A channel's transactions (``Transacting``), as far as questions go."""

    @property
    def may_commit(self) -> bool: ...
    def would_refuse(self, *, brings: bool) -> str: ...
    def query(self, reply: Reply, body: bytes) -> None: ...


class CarriesOutVerbs(Protocol):
    """A channel's distributed transactions (``Distributed``)."""

    def carry_out(self, verb: str, asker: MessageAsker, args: tuple[Any, ...]) -> None: ...


class RequestChannel(Protocol):
    """A channel on which a request came (``Channel``)."""

    @property
    def broker(self) -> RequestsPort: ...
    @property
    def connection(self) -> AskingConnection: ...
    @property
    def transacting(self) -> AsksOutcomes: ...
    @property
    def distributed(self) -> CarriesOutVerbs: ...
