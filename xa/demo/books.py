"""The content of accounts and queue, and the branches in doubt."""

from __future__ import annotations

import json
from typing import Any, Final

import amqp
import attrs

from understudy.xa.demo.stage import QUEUE
from understudy.xa.manager import TransactionManager
from understudy.xa.resource_managers.factory import make_resource_manager
from understudy.xa.resource_managers.port import ResourceManager
from understudy.xa.sockets.link import StateLink

ACCOUNTS: Final = 10
OPENING_BALANCE: Final = 1000
TOTAL: Final = ACCOUNTS * OPENING_BALANCE
PERSISTENT: Final = 2
_SUMS: Final = "SELECT (SELECT sum(balance) FROM account), count(*) FROM ledger"
_OWED: Final = """
    SELECT gid FROM ledger AS made
    WHERE paid_in IS NULL AND NOT EXISTS (SELECT FROM ledger AS paid WHERE paid.paid_in = made.gid)
"""
"""Withdrawals whose amounts are not paid out yet."""


@attrs.frozen(kw_only=True)
class Books:
    """All counts of one moment.

    Attributes:
        doubled: messages that stand in the queue twice. A second payment is refused by the database.
        missing: withdrawals of the ledger that are neither paid out nor in the queue.
        foreign: messages of the queue without a withdrawal in the ledger.
        in_doubt: branches that a resource manager lists.
        waiting: transactions that the state server has, in words.
    """

    in_accounts: int
    in_queue: int
    messages: int
    ledger_rows: int
    doubled: int
    missing: int
    foreign: int
    in_doubt: int
    waiting: list[str]

    @property
    def problems(self) -> list[str]:
        """Rules that do not hold; empty if all is well."""
        found = self.wrong
        if self.in_doubt:
            found.append(f"{self.in_doubt} branches are in doubt")
        if self.waiting:
            found.append(f"{len(self.waiting)} transactions wait on the state server: {self.waiting[0]}")
        return found

    @property
    def wrong(self) -> list[str]:
        """Faults that no recovery puts right, if nothing is in doubt."""
        found = []
        if self.in_accounts + self.in_queue != TOTAL:
            found.append(f"accounts hold {self.in_accounts}, the queue {self.in_queue}: together not {TOTAL}")
        if self.doubled:
            found.append(f"{self.doubled} amounts are there twice")
        if self.missing:
            found.append(f"{self.missing} withdrawals are in the database, and their messages are not in the queue")
        if self.foreign:
            found.append(f"{self.foreign} messages are in the queue, and their withdrawals are not in the database")
        return found


def open_books(manager: TransactionManager) -> None:
    """Make accounts and queue."""
    bank, queues = opened(manager, "bank"), opened(manager, "queues")
    connection = bank.resource
    connection.execute("CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL CHECK (balance >= 0))")
    connection.execute("CREATE TABLE ledger (gid text PRIMARY KEY, paid_in text UNIQUE, amount int NOT NULL)")
    connection.execute(
        "INSERT INTO account SELECT id, %s FROM generate_series(1, %s) AS id", (OPENING_BALANCE, ACCOUNTS)
    )
    connection.commit()
    queues.resource.queue_declare(QUEUE, durable=True, auto_delete=False)
    bank.close()
    queues.close()


def read_books(manager: TransactionManager) -> Books:
    """Count everything. What is taken from the queue goes back when the connection closes.

    The state server is asked first: a transaction that it has no entry of has no branch that could still come in doubt.
    """
    waiting = _waiting(manager)
    bank, queues = opened(manager, "bank"), opened(manager, "queues")
    try:
        in_doubt = len(bank.recover()) + len(queues.recover())
        in_accounts, ledger_rows = bank.resource.execute(_SUMS).fetchone()
        owed = {gid for (gid,) in bank.resource.execute(_OWED)}
        bank.resource.rollback()
        queued = []
        while (message := queues.resource.basic_get(QUEUE)) is not None:
            queued.append(json.loads(message.body))
    finally:
        bank.close()
        queues.close()
    names = [one["gid"] for one in queued]
    return Books(
        in_accounts=int(in_accounts),
        in_queue=sum(one["amount"] for one in queued),
        messages=len(queued),
        ledger_rows=int(ledger_rows),
        doubled=len(names) - len(set(names)),
        missing=len(owed.difference(names)),
        foreign=len(set(names) - owed),
        in_doubt=in_doubt,
        waiting=waiting,
    )


def withdraw(transaction: Any, account: int, amount: int) -> None:
    """Take from an account and publish a message with the amount."""
    connection = transaction.resource("bank")
    connection.execute("UPDATE account SET balance = balance - %s WHERE id = %s", (amount, account))
    connection.execute("INSERT INTO ledger VALUES (%s, NULL, %s)", (transaction.gid, -amount))
    body = json.dumps({"gid": transaction.gid, "amount": amount})
    message = amqp.Message(body, delivery_mode=PERSISTENT)
    transaction.resource("queues").basic_publish(message, exchange="", routing_key=QUEUE)


def deposit(transaction: Any, account: int) -> bool:
    """Take a message and add its amount to an account; False if the queue is empty."""
    channel = transaction.resource("queues")
    message = channel.basic_get(QUEUE)
    if message is None:
        return False
    paid = json.loads(message.body)
    connection = transaction.resource("bank")
    connection.execute("UPDATE account SET balance = balance + %s WHERE id = %s", (paid["amount"], account))
    connection.execute("INSERT INTO ledger VALUES (%s, %s, %s)", (transaction.gid, paid["gid"], paid["amount"]))
    channel.basic_ack(message.delivery_tag)
    return True


def opened(manager: TransactionManager, name: str) -> ResourceManager:
    """A resource manager of the profile, beside all transactions."""
    resource = make_resource_manager(manager.profile.resource(name))
    resource.open()
    return resource


def _waiting(manager: TransactionManager) -> list[str]:
    profile = manager.profile
    with StateLink(profile.state_server, job="books", profile=profile.name, fingerprint=profile.fingerprint) as link:
        return [
            f"{one.entry.gid} of job {one.entry.job}, {one.state}, {one.entry.attempts} failed recoveries {one.entry.reason}"
            for one in link.entries()[0]
        ]
