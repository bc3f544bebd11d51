"""The logs of simulated clients, in the format of ``client/verdicts``: what an audit reads beside the feed."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulator.ledger import ClientTransaction, Told
from tests.simulator.workloads import kept_queues
from understudy.client.verdicts import ClientLog, History, Message, Transaction
from understudy.client.verdicts.evidence.client_log import BY_BROKER, BY_CLIENT

if TYPE_CHECKING:
    from tests.simulator.cluster import SimCluster

PLAIN = "plain"
"""Whose log has what all clients did outside of transactions: the books do not say which client it was."""


def write_client_logs(cluster: SimCluster, folder: Path) -> None:
    """One log a client, from the books at the end of a run; ``folder`` is made if it is missing.

    Messages of a transaction are those for kept queues: some workloads make transient ones, or send to what may be gone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = frozenset(kept_queues(cluster.knobs))
    history = cluster.accounts.case(kept).history
    by_client: dict[str, list[Transaction]] = defaultdict(list)
    for transaction in history.transactions.values():
        by_client[transaction.client].append(transaction)
    for client, transactions in by_client.items():
        with _log(folder, client) as log:
            for transaction in transactions:
                _write(log, transaction, cluster.ledger.transactions[transaction.name], kept)
    with _log(folder, PLAIN) as log:
        _write_plain(log, history)


def _log(folder: Path, client: str) -> ClientLog:
    path = folder / f"{client}.jsonl"
    path.unlink(missing_ok=True)
    return ClientLog(path, client, clock=lambda: 0.0)


def _write(log: ClientLog, transaction: Transaction, entered: ClientTransaction, kept: frozenset[str]) -> None:
    name = transaction.name
    log.began(name, question=None if transaction.question == name else transaction.question)
    log.sent([each for each in transaction.makes if each.queue in kept], name)
    log.acknowledged(transaction.takes, name)
    if entered.committing:
        log.commit_sent(name)
    if entered.told is Told.COMMITTED:
        log.committed(name)
    elif entered.told is Told.ROLLED_BACK:
        log.rolled_back(name, BY_BROKER if entered.committing else BY_CLIENT, "")
    elif entered.told is Told.UNKNOWN:
        log.unknown(name, "")


def _write_plain(log: ClientLog, history: History) -> None:
    confirmed, refused, taken = (
        [Message(*place) for place in sorted(places)] for places in (history.confirmed, history.refused, history.taken)
    )
    log.sent(confirmed + refused)
    log.confirmed(confirmed)
    log.refused(refused, "nacked or returned")
    log.acknowledged(taken)
