"""BranchesPort: the leading broker, and the channels that ask, as distributed transactions see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from understudy.broker.core.commits.port import CommitsPort
from understudy.broker.core.watching.told import ToldChannel

if TYPE_CHECKING:
    from understudy.broker.core.branches.dtx_manager import DtxManager


class BranchesPort(CommitsPort, Protocol):
    """See ``Broker`` for each name."""

    @property
    def dtx(self) -> DtxManager: ...


class Worker(Protocol):
    """A channel's work on a branch (``Association``)."""

    def branch_failed(self, died: bool) -> None: ...


class AskingChannel(ToldChannel, Protocol):
    """A channel that has asked for a branch (``Channel``)."""

    @property
    def ended(self) -> bool: ...
    @property
    def closing(self) -> bool: ...
    def hold_all(self) -> None: ...
    def answer_when_acknowledged(self, key: int, answer: Callable[[], object]) -> None: ...
