"""Stages: consume a message, change a database, send messages: all of it, or none.

    stages = Stages("shop", broker="amqp://b1,b2,b3/", database=sqlite("shop.db"))

    @stages.stage("shop.reserve", once=True)
    async def reserve(order: Order, db: AsyncConnection) -> Reserved: ...

A stage is an ordinary function, called once for each message of its queue. Its first parameter is the message, by annotation;
what it returns is the message of the next stage. An exception rolls back and is tried again; nothing is discarded, and
nothing is acknowledged before its work is committed. The manual is ``docs/stages.md``.

    application/  `Stages`, what an application declares; the worker that runs it; `begin`; a program that awaits replies
    definitions/  a stage and a flow, messages as JSON, what a stage is told and how it sends
    core/         the decisions, without I/O: see there
    slots/        one delivery at a time, by the steps that the core asks for; marker and relay of the outbox
    broker/       connections, channels, a delivery as the core sees it, the clock
    databases/    business databases: ``sqlite(path)``, ``postgresql(conninfo)``; inbox and outbox
    initiations/  messages that are sent outside of stages, with asyncio and without
    joint/        ``xa=True``: database and broker in one transaction
    watching/     counts, ages, log lines, spans and pages; the points at which tests kill a worker
    commands/     ``understudy stages run`` and ``tables``: a worker until a signal, workers as children of one process
    looking/      ``understudy stages list`` and ``show``
    dead_letters/ ``understudy dlq``
    errors        what is raised, by what it says of the database and of the messages
    demo/         ``scripts/demo stages``

The worker needs aio-pika (extra ``stages``); the declarations need nothing.
"""

from understudy.client.stages.application.application import Stages
from understudy.client.stages.core.retry import Retry
from understudy.client.stages.databases import postgresql, sqlite
from understudy.client.stages.databases.sqlite_database import AsyncConnection, Rows
from understudy.client.stages.definitions.context import Context
from understudy.client.stages.definitions.stage import Flow, Stage
from understudy.client.stages.errors import (
    AlreadyBegunError,
    ConfigurationError,
    DemarcationError,
    NoReplyError,
    NotCommittedError,
    NotSentError,
    OutcomeUnknownError,
    Refuse,
    StagesError,
    TooManyWaitError,
)

__all__ = [
    "AlreadyBegunError",
    "AsyncConnection",
    "ConfigurationError",
    "Context",
    "DemarcationError",
    "Flow",
    "NoReplyError",
    "NotCommittedError",
    "NotSentError",
    "OutcomeUnknownError",
    "Refuse",
    "Retry",
    "Rows",
    "Stage",
    "Stages",
    "StagesError",
    "TooManyWaitError",
    "postgresql",
    "sqlite",
]
