"""Stages: the application: its stages, its flows, its broker and its database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from understudy.client.stages.broker.addresses import addresses_of, reached, supposed
from understudy.client.stages.core.envelope import DEAD_LETTERS, REPLIES
from understudy.client.stages.core.retention import (
    DEAD_LETTER_RETENTION,
    INBOX_RETENTION,
    check_range,
    check_retention,
)
from understudy.client.stages.core.retry import Retry
from understudy.client.stages.databases.port import Database
from understudy.client.stages.definitions.stage import Flow, Stage, check_concurrency
from understudy.client.stages.errors import ConfigurationError

if TYPE_CHECKING:  # begin imports this module
    from understudy.client.stages.application.begin import Begin, Initiators
    from understudy.client.stages.application.replies import Replies
    from understudy.client.stages.application.worker_thread import WorkerThread
    from understudy.xa.core.profiles.profile import Profile

P = ParamSpec("P")
R = TypeVar("R")

STATE_SERVER: Final = "unix:~/.understudy/state-server.sock"
"""Where a state server of the same user listens."""
LONGEST_NAME: Final = 200
"""Octets: a queue's name has at most 255, and queues that belong to a stage have longer names than it."""


class Stages:
    """The stages and flows of one application. Making it connects to nothing.

    Args:
        name: of the application; part of the ids of its initiations.
        broker: ``amqp://user:word@b1,b2,b3/``, or a sequence of such addresses; or ``zookeeper://z1,z2/group``.
        database: the business database, as `sqlite` makes it; None: no stage uses one.
        version: of the application, for example its commit; its dead letters tell it.
        inbox_retention: how long the inbox of stages with ``once=True``, and of initiations with a name, remembers a message;
            0 to 10 years. Not shorter than the retries of a stage and ``dead_letter_retention`` together.
        state_server: of stages with ``xa=True``: the address of an ``understudy state-server``, or a table of keys as docs/xa.md
            has them for ``[[state_servers]]``.
        dead_letter_retention: how long after its death a dead letter may be issued again and still be known to the inbox.

    Raises:
        ConfigurationError: an address is none, or a retention is out of its range.
    """

    def __init__(
        self,
        name: str,
        *,
        broker: str | Sequence[str],
        database: Database | None = None,
        version: str = "",
        inbox_retention: timedelta = INBOX_RETENTION,
        dead_letter_retention: timedelta = DEAD_LETTER_RETENTION,
        state_server: str | Mapping[str, Any] = STATE_SERVER,
    ) -> None:
        self.name = _named("application", name)
        self.version = version
        self.addresses = addresses_of(broker)
        self.database = _one(database)
        self.inbox_retention = check_range("inbox_retention", inbox_retention)
        self.dead_letter_retention = check_range("dead_letter_retention", dead_letter_retention)
        self.state_server = state_server
        self.stages: dict[str, Stage[..., Any]] = {}
        self.flows: dict[str, Flow] = {}
        self._initiators: Initiators | None = None

    def stage(
        self,
        name: str,
        *,
        once: bool = False,
        xa: bool = False,
        retry: Retry | None = None,
        concurrency: int = 1,
        precheck: bool | None = None,
        key: Callable[[Any], str] | None = None,
    ) -> Callable[[Callable[P, R]], Stage[P, R]]:
        """Make a function a stage: it is called with each message of the queue ``name``.

        Args:
            name: of the stage and of its queue; dead letters go to the queue ``name.dead``.
            once: an inbox and an outbox in the database's transaction: the stage's work in the database is done once for a
                message, whatever is killed. Needs a database.
            xa: the same without tables: database and broker commit as one transaction of `understudy.xa`. Needs PostgreSQL with
                prepared transactions, and an ``understudy state-server``.
            retry: how often and when a failed message is tried again.
            concurrency: how many messages of the stage one worker process has in hand at once, 1 to 1,000.
            precheck: ask the broker, by a round trip right before the database commits, if it would refuse the commit behind
                it. Then the database is rolled back, and the message waits; this is no attempt. None: only with a database and
                without ``once``.
            key: gives the key of a message, 1 to 200 octets. Messages of one key are processed in the order of the queue, also if
                one fails: those behind it are parked until it is done, or purged from the dead-letter queue. One worker at a time
                consumes the queue, others stand by. Needs ``once=True`` and ``concurrency=1``.

        Raises:
            ConfigurationError: the name is taken, or a value is out of its range.
        """
        _named("stage", name)
        if name in self.stages:
            raise ConfigurationError(
                f"two stages are named {name!r}: {self.stages[name].function.__qualname__} is the first"
            )
        check_concurrency(name, concurrency)

        def make(function: Callable[P, R]) -> Stage[P, R]:
            if name in self.stages:
                raise ConfigurationError(f"two stages are named {name!r}; {function.__qualname__} is the second")
            made = Stage(
                function,
                name,
                once=once,
                xa=xa,
                retry=retry or Retry(),
                concurrency=concurrency,
                database=self.database,
                precheck=precheck,
                key=key,
                application=self.name,
                version=self.version,
            )
            self.stages[name] = made
            return made

        return make

    def flow(self, name: str, *stages: Stage[..., Any]) -> Flow:
        """Put stages into an order: what each returns is the message of the next.

        Raises:
            ConfigurationError: the name is taken, there is no stage, or a stage is of another application or stands twice.
        """
        _named("flow", name)
        if name in self.flows:
            raise ConfigurationError(f"two flows are named {name!r}")
        if not stages:
            raise ConfigurationError(f"flow {name!r} has no stage")
        for each in stages:
            if self.stages.get(each.name) is not each:
                raise ConfigurationError(f"flow {name!r}: {each!r} is not of the application {self.name!r}")
            if name in each.flows:
                raise ConfigurationError(f"flow {name!r}: {each!r} stands in it twice")
            each.flows[name] = None
        for one, following in pairwise(stages):
            one.flows[name] = following
        self.flows[name] = made = Flow(name, stages)
        return made

    def set_concurrency(self, name: str, concurrency: int) -> None:
        """Have a worker of this process take so many messages of a stage at once, instead of what the stage declares.

        Raises:
            ConfigurationError: there is no such stage, or it cannot have so many.
        """
        if name not in self.stages:
            raise ConfigurationError(f"stage {name!r}: the application {self.name!r} has {', '.join(self.stages)}")
        self.stages[name].set_concurrency(concurrency)

    def check(self) -> None:
        """Find what is declared wrongly, before the first message; connects to nothing.

        Raises:
            ConfigurationError: names the stage and the remedy.
        """
        if not self.stages:
            raise ConfigurationError(f"the application {self.name!r} has no stage")
        for each in self.stages.values():
            each.check()
            if each.once:
                check_retention(each.name, each.retry, self.inbox_retention, self.dead_letter_retention)
        if any(each.xa for each in self.stages.values()):
            self._profile(supposed(self.addresses))

    def joint_profile(self) -> Profile:
        """The profile of stages with ``xa=True``: database, broker and state server. A group is looked up in ZooKeeper now.

        Raises:
            ConfigurationError: a branch cannot have one of the parameters; an extra is not installed; or ZooKeeper is away.
        """
        return self._profile(reached(self.addresses))

    def _profile(self, addresses: Sequence[str]) -> Profile:
        try:
            from understudy.client.stages.joint.place import job_of, place_of  # noqa: PLC0415  # most need no transaction manager
        except ImportError as error:
            raise ConfigurationError(f"xa=True: {error}: pip install 'understudy[stages,xa]'") from error
        job_of(self.name)
        database: Any = self.database
        return place_of(self.name, addresses, database.libpq, self.state_server)

    def begin(self, name: str | None = None, *, outbox: bool = True, db: Any = None, xa: bool = False) -> Begin:
        """Send messages from outside of a stage, and change the database with them: all of it, or none.

            async with stages.begin(name="web-17") as tx:
                await tx.db.execute("INSERT INTO orders (id) VALUES (17)")
                checkout.send(Order(17))

        A program without asyncio writes ``with`` in place of ``async with``, in any thread; ``tx.db`` then blocks.

        Args:
            name: of what is begun, for example of a web request; the ids of its messages follow from it. Needs a database.
            outbox: messages are kept in the database's transaction until the broker has them. Without a database it means
                nothing.
            db: the type of ``tx.db``, as a stage's parameter may have it, for example SQLAlchemy's ``AsyncSession``; None: the
                usual one of the database.
            xa: database and broker commit as one transaction, as those of a stage with ``xa=True``: each message is sent once.

        Raises:
            AlreadyBegunError: an initiation of this name was committed before.
            NotCommittedError: nothing was committed.
            NotSentError: without an outbox: the database was committed, and the messages were not sent.
            OutcomeUnknownError: the database was lost while it committed; or, without a database, the broker cannot tell any
                more if the messages were sent.
        """
        from understudy.client.stages.application.begin import Begin, Initiators  # noqa: PLC0415  # declarations need no aio-pika

        if self._initiators is None:
            self._initiators = Initiators(self)
        return Begin(self, self._initiators, name, outbox=outbox, kind=db, xa=xa)

    def replies(self, *, limit: int = 1000) -> AbstractAsyncContextManager[Replies]:
        """Begin flows and await what their stages reply.

            async with stages.replies() as replies:
                paid = await replies.ask(checkout, Order(17), Paid, within=10)

        Args:
            limit: of replies that are awaited at once, at least 1.

        Raises:
            ConfigurationError: a value is out of its range, or the broker refuses the login.
        """
        if limit < 1:
            raise ConfigurationError(f"replies(limit={limit}): at least 1 is needed")
        from understudy.client.stages.application.replies import Replies  # noqa: PLC0415  # declarations need no aio-pika

        return Replies(self, limit).served()

    async def close(self) -> None:
        """Close what initiations of this event loop have opened; the next one opens it again."""
        if self._initiators is not None:
            await self._initiators.close()

    def close_blocking(self) -> None:
        """Close what initiations by ``with`` have opened in this process; the next one opens it again."""
        if self._initiators is not None:
            self._initiators.close_blocking()

    def run_in_thread(self, **options: Any) -> WorkerThread:
        """Run all stages in a thread of this program, which need not have an event loop.

            with stages.run_in_thread():
                ...

        Args:
            options: as `Worker` takes them.

        Returns:
            The worker; its `stop`, or the end of the ``with``, lets each stage finish what it has in hand.

        Raises:
            ConfigurationError: the application is declared wrongly. What broker or database refuse is raised by `stop`.
        """
        from understudy.client.stages.application.worker_thread import WorkerThread  # noqa: PLC0415  # declarations need no aio-pika

        return WorkerThread(self, **options)

    @contextmanager
    def elsewhere(self, *, broker: str | Sequence[str], database: Database | None) -> Iterator[None]:
        """Use another broker and another database within a ``with``; tests do.

        Raises:
            ConfigurationError: the database is of another kind than the one that the application was made with.
        """
        if type(database) is not type(self.database):
            raise ConfigurationError(
                f"the application {self.name!r} has the database {_address(self.database)}: {_address(database)} is of another kind"
            )
        before = self.addresses, self.database
        self.close_blocking()
        self.addresses, self.database = addresses_of(broker), database
        try:
            yield
        finally:
            self.close_blocking()
            self.addresses, self.database = before

    def queues(self) -> list[str]:
        """The queues of all stages, and their dead-letter queues."""
        return [queue for name in self.stages for queue in (name, name + DEAD_LETTERS)]


def _one(database: Any) -> Database | None:
    if isinstance(database, Iterable):
        named = " and ".join(str(getattr(each, "address", each)) for each in database)
        raise ConfigurationError(f"Stages: database= takes one; two are given: {named}")
    made: Database | None = database
    return made


def _address(database: Database | None) -> str:
    return database.address if database is not None else "none"


def _named(what: str, name: str) -> str:
    if not name or len(name.encode()) > LONGEST_NAME or name.endswith(DEAD_LETTERS) or name.startswith(REPLIES):
        raise ConfigurationError(
            f"{what} {name!r}: a name has 1 to {LONGEST_NAME} octets, does not end with {DEAD_LETTERS!r} and does not begin with "
            f"{REPLIES!r}"
        )
    return name
