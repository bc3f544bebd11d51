"""Ways to make one transfer: by the package ``transaction``, by SQLAlchemy's sessions, and by both together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import amqp
import transaction
import zope.sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.integration.xa_place import QUEUE
from understudy.xa import TransactionManager
from understudy.xa.with_sqlalchemy import enlisted_engine
from understudy.xa.with_transaction import JointTransactions


class Base(DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "ledger"
    gid: Mapped[str] = mapped_column(primary_key=True)


class Other:
    """A data manager of another package."""

    transaction_manager = transaction.manager

    def __init__(self, sorts: str, **do: Callable[[], None]) -> None:
        self.sorts = sorts
        self.calls: list[str] = []
        self._do = do

    def sortKey(self) -> str:  # noqa: N802
        return self.sorts

    def __getattr__(self, name: str) -> Any:
        if name not in ("abort", "commit", "tpc_begin", "tpc_vote", "tpc_finish", "tpc_abort"):
            raise AttributeError(name)

        def called(_of: object) -> None:
            self.calls.append(name)
            if (do := self._do.get(name)) is not None:
                do()

        return called


def published(channel: Any, body: str) -> None:
    channel.basic_publish(amqp.Message(body, delivery_mode=2), exchange="", routing_key=QUEUE)


def with_transaction(manager: TransactionManager, *others: Other) -> str:
    joint = JointTransactions(manager)
    with transaction.manager as of:
        for other in others:
            of.join(other)
        gid = joint.current.gid
        joint.resource("bank").execute("INSERT INTO ledger VALUES (%s)", (gid,))
        published(joint.resource("queues"), gid)
    return gid


def with_sessions(manager: TransactionManager, *, twophase: bool) -> str:
    with manager.begin() as current:
        with Session(enlisted_engine(manager, "bank"), twophase=twophase) as session, session.begin():
            session.add(Entry(gid=current.gid))
        published(current.resource("queues"), current.gid)
    return current.gid


def with_both(manager: TransactionManager, *others: Other, twophase: bool) -> str:
    joint = JointTransactions(manager)
    session = registered(joint, twophase=twophase)
    with transaction.manager as of:
        for other in others:
            of.join(other)
        gid = joint.current.gid
        session.add(Entry(gid=gid))
        published(joint.resource("queues"), gid)
    return gid


def registered(joint: JointTransactions, *, twophase: bool) -> Session:
    session = Session(enlisted_engine(joint, "bank"), twophase=twophase)
    zope.sqlalchemy.register(session)
    return session


WAYS: dict[str, Callable[[TransactionManager], str]] = {
    "transaction": with_transaction,
    "sessions": functools.partial(with_sessions, twophase=False),
    "two-phase sessions": functools.partial(with_sessions, twophase=True),
    "both": functools.partial(with_both, twophase=False),
    "both, two-phase": functools.partial(with_both, twophase=True),
}
