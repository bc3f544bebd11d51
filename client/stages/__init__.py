"""Stages: consume a message, change a database, send messages: all of it, or none.

    stages = Stages("shop", broker="amqp://b1,b2,b3/", database=sqlite("shop.db"))

    @stages.stage("shop.reserve", once=True)
    async def reserve(order: Order, db: AsyncConnection) -> Reserved: ...

A stage is an ordinary function, called once for each message of its queue. Its first parameter is the message, by annotation;
what it returns is the message of the next stage. An exception rolls back and is tried again; nothing is discarded, and
nothing is acknowledged before its work is committed. The manual is ``docs/stages.md``.

    application   Stages: what an application declares
    stage         Stage and Flow; what a function's annotations say
    codec         messages as JSON
    context       what a stage is told, and how it sends
    core/         the decisions, without I/O: see there
    commands, processes, reloading  ``understudy stages run``: workers as children of one process
    running       a worker in this process until a signal; its end within a time
    worker        runs all stages of a process
    watching      counts, ages, ids of log lines, spans; pages, log_lines and tracing show them
    clock         the wall clock, or that of a test
    slot          one delivery at a time: does the steps that the core asks for
    connection    channels of the connection of `understudy.client`, and the queues that it has declared
    channel       one transaction of the broker
    arrival       a delivery as the core sees it
    databases/    business databases: ``sqlite(path)``, ``postgresql(conninfo)``; inbox and outbox
    marker, relay what takes sent messages out of the outbox, and sends what a killed worker left in it
    initiations/  messages that are sent outside of stages, with asyncio and without
    worker_thread a worker in a thread of a program without an event loop
    joint/        ``xa=True``: database and broker in one transaction
    dead_letters/ ``understudy dlq``
    looking, flow_path, look_commands  ``understudy stages list`` and ``show``
    command_connection  the connection of a command that looks at queues
    replies       a program that awaits what a flow replies
    points        named moments at which tests kill a worker
    demo/         ``scripts/demo stages``

The worker needs aio-pika (extra ``stages``); the declarations need nothing.
"""

from understudy.client.stages.application import Stages
from understudy.client.stages.context import Context
from understudy.client.stages.core.retry import Retry
from understudy.client.stages.databases import postgresql, sqlite
from understudy.client.stages.databases.sqlite_database import AsyncConnection, Rows
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
from understudy.client.stages.stage import Flow, Stage

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
