"""The workload ``dtx``: clients with a transaction manager each move messages between queues in branches (docs/dtx.md).

The verbs go as messages to ``understudy.dtx``, so every library can send them. A manager never forgets. Once a branch is prepared
it decides, writes the decision down before it says it, and says it until it is answered, from whichever broker leads. A branch
that is not known to be prepared is rolled back.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from understudy.client.runs.session import LostError, RefusedError
from understudy.client.stress.libraries.connection import Connection, dtx
from understudy.client.stress.workloads.worker import Worker, body_of
from understudy.client.verdicts.evidence.client_log import BY_BROKER, BY_CLIENT, BY_LOSS, Message
from understudy.client.verdicts.evidence.history import COMMITTED

QUEUES: Final = tuple(f"branch-{number}" for number in range(4))
MESSAGES: Final = 25
MOST_MOVED: Final = 3
COMMIT_SHARE: Final = 0.8
OK: Final = 0
NOT_FOUND: Final = 404


class Fill(Worker):
    """Fills the queues, in one local transaction."""

    def prepare(self, connection: Connection) -> None:
        for queue in QUEUES:
            connection.declare(queue)
        connection.select()

    def work(self, connection: Connection) -> None:
        self.transact(connection, [], [(queue, 0) for queue in QUEUES for _ in range(MESSAGES)])


@attrs.define
class _Branch:
    """A branch that is not decided yet.

    Attributes:
        commit: the decision.
        why: of a rollback.
        said: a decision was sent before.
    """

    xid: str
    commit: bool = False
    by: str = BY_LOSS
    why: str = "the branch was not prepared"
    said: bool = False


class Manager(Worker):
    """An application and its transaction manager."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._branch: _Branch | None = None

    @property
    def owes(self) -> bool:
        return self._branch is not None

    def settle(self, connection: Connection) -> None:
        if self._branch is not None:
            self._decide(connection, self._branch)

    def prepare(self, connection: Connection) -> None:
        dtx(connection, "select")

    def work(self, connection: Connection) -> None:
        branch = self._branch = _Branch(self.next_name())
        self.log.began(branch.xid, broker=str(self.session.address), question="")
        try:
            self._move(connection, branch)
        except (LostError, RefusedError) as error:
            branch.why = str(error)
            raise
        self._decide(connection, branch)

    def _move(self, connection: Connection, branch: _Branch) -> None:
        """Afterwards the branch is prepared, and it is known what becomes of it."""
        dtx(connection, "start", branch.xid)
        moved = 0
        for index in range(self._random.randint(1, MOST_MOVED)):
            source, target = self._random.sample(QUEUES, 2)
            delivery = connection.get(source)
            if delivery is not None:
                held = self.held(delivery)
                message = Message(f"{branch.xid}/{index}", target)
                self.log.sent([message], branch.xid)
                self.log.acknowledged([held.message], branch.xid)
                connection.publish(target, body_of(message))
                connection.acknowledge(held.tag)
                moved += 1
        dtx(connection, "end", branch.xid)
        if dtx(connection, "prepare", branch.xid) != OK:
            branch.by, branch.why = BY_BROKER, "prepare was refused"
        elif moved and self._random.random() < COMMIT_SHARE:
            branch.commit = True
            self.log.commit_sent(branch.xid)
        else:
            branch.by, branch.why = BY_CLIENT, "on purpose"

    def _decide(self, connection: Connection, branch: _Branch) -> None:
        """Say the decision until it is answered. 404 to a decision that was said before means that it was carried out."""
        before, branch.said = branch.said, True
        try:
            status = dtx(connection, "commit" if branch.commit else "rollback", branch.xid)
        except RefusedError as error:
            if error.code != NOT_FOUND:
                raise
            self._gone(branch, before)
            self._branch = None
            raise  # the channel is closed
        if not branch.commit:
            self.log.rolled_back(branch.xid, branch.by, branch.why)
        elif status == OK:
            self.log.committed(branch.xid)
        else:
            self.log.resolved(branch.xid, f"commit of a prepared branch: status {status}")
        self._branch = None

    def _gone(self, branch: _Branch, before: bool) -> None:
        if not branch.commit:
            self.log.rolled_back(branch.xid, branch.by, branch.why)
        elif before:
            self.log.resolved(branch.xid, COMMITTED)
        else:
            self.log.resolved(branch.xid, "a prepared branch is not there")
