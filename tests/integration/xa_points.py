"""The named points of a distributed transaction at which tests end a process with SIGKILL.

A point is a step of a client, before or after it, or a record, sync or reply of the state server.
"""

from __future__ import annotations

STEPS = [
    "tell.begin", "start.bank", "start.queues", "tell.started", "end.bank", "end.queues", "prepare.bank", "prepare.queues",
    "tell.decide", "commit.bank", "commit.queues", "tell.done",
]  # fmt: skip
CLIENT_POINTS = [f"{step}.{side}" for step in STEPS for side in ("before", "after")]
DECIDED = CLIENT_POINTS.index("tell.decide.after")
SERVER_POINTS = [
    f"{what}.{request}.{side}"
    for request, all_of in (("begin", "append sync reply"), ("started", "append reply"), ("decide", "append sync reply"),
                            ("done", "append reply"))
    for what in all_of.split()
    for side in ("before", "after")
]  # fmt: skip
BROKER_POINTS = [point for point in CLIENT_POINTS if ".queues." in point or ".decide." in point]
BANK_POINTS = [point for point in CLIENT_POINTS if ".bank." in point or ".decide." in point]

# Of a transaction that several programs work on.
BOTH_SECOND_POINTS = [
    f"{step}.{side}"
    for step in (
        "tell.enter", "start.bank~1", "start.queues~1", "tell.started", "end.bank~1", "end.queues~1",
        "prepare.bank~1", "prepare.queues~1", "tell.vote",
    )
    for side in ("before", "after")
]  # fmt: skip
BOTH_FIRST_POINTS = [
    f"{step}.{side}"
    for step in ("tell.share", "tell.gather", "tell.decide", "commit.bank~1", "commit.queues~1", "tell.settle")
    for side in ("before", "after")
]
BOTH_SERVER_POINTS = [
    "reply.share.after", "append.enter.before", "sync.enter.after", "append.vote.before", "sync.vote.before", "sync.vote.after",
    "reply.vote.after", "append.doom.before", "sync.doom.after", "append.settle.before", "append.settle.after",
]  # fmt: skip
