"""The workloads: programs of a simulated cluster's clients. Each checks what it is told; the checkers check everything else.

===============  ========================================================================================================
``bank``         always there: coins between accounts, in transactions of gets, publishes and acknowledgements
``ring``         tokens go round a ring of queues, from one client to the next, one hop a transaction
``mixed``        one queue, transactional and plain publishers and consumers at once
``stages``       consume, publish to the next stage, acknowledge, in one transaction; prefetch, rejects, rollbacks
``fifo``         numbered messages with confirms, consumed in order, never skipped
``picky``        a consumer that nacks, rejects, recovers, cancels, and shares a channel-wide prefetch
``router``       exchanges of all types, bindings, mandatory and immediate
``fleeting``     what may go: TTLs, auto-delete, expiring queues, transient messages, purges, deletes
``inquirer``     asks about other people's transactions, before, during and after
``vandal``       breaks the protocol
``sleeper``      leaves transactions open until the broker ends them
``heavy``        large bodies, transactions of hundreds of messages
``shy``          transactions of transient messages and non-durable queues
``fan``          one publish to several queues, deadlines, a queue deleted under an open transaction
``replacer``     exchanges and queues that no restart keeps, replaced under their names, and transactions through them
``changeling``   exchanges and queues that are durable at one time, and not at the next, several changed in one breath
``levels``       a queue of each level of replication, and transactions across all three
``distributed``  branches of distributed transactions: a manager that never forgets, and an operator who does not wait for it
``thinker``      transactions that stay open for a while before they commit
``mortal``       messages that are rejected, expire or are too many, and their dead-letter queues
``ranked``       messages with priorities, consumers with priorities, one consumer at a time, consumers that hang
``retried``      messages that fail again and again, delayed or not, in transactions too, until they are dead letters
``repeater``     messages that are published again with the same id, to what drops duplicates
``wild``         anything at any time; no seed draws it
===============  ========================================================================================================

Most have a file of their name. In `plain` are fifo and picky; in `odd_transactions` sleeper, heavy, shy and thinker. Programs are
made of `transactor` and `sessions`, share a `run`, and are chosen by `setting_up`.
"""

from __future__ import annotations

from tests.simulator.workloads.bank import ACCOUNTS
from tests.simulator.workloads.run import Run
from tests.simulator.workloads.setting_up import kept_queues, workers

__all__ = ["ACCOUNTS", "Run", "kept_queues", "workers"]
