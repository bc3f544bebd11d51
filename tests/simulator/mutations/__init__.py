"""Known bugs, put into the real core to see whether the ordinary sweep finds them.

They come from the ancestor's and other brokers' bug lists, from rules that the model of the protocol needs, and from what the
sweep itself has found here. None has a seed, a workload or a schedule made for it. They live here as overrides and never as
switches in the product.

One that breaks a rule and no promise, since a second precaution stands behind the first, is kept and said to be harmless, with the
reason and the mutation of the model that shows it; the sweep must find nothing with it. The day it does, one of them has gone.

==================  ===========================================================================================
``durability``      said, or taken for stable, before it is on the disks that it must be on
``transactions``    torn, seen early, decided by the wrong one, forgotten
``branches``        of distributed transactions: ended, seen, decided or forgotten by the wrong one
``votes``           a no that is not heard, not kept, told too early; a yes that nobody gave
``fencing``         an epoch that has ended and is not taken for ended
``membership``      who is waited for, who is listed, how the store learns of it
``rejoining``       what is cut, what a catch-up brings
``damaged_logs``    a disk that has lost what was synced
``order``           order, redelivery and expiry
``handing_out``     what consumers are given, and what they give back
``levels``          what is not replicated
``operators``       step-down, expel and admit
``turns``           the order of a turn, and what asks for one
``parts``           bodies that stand in the log in parts
``serving``         priorities of messages and consumers, one consumer at a time, time-outs
``moves``           dead letters and limits: what leaves one queue for others
``returns``         messages that come back, or come late
``duplicates``      ids of messages that are to come once
``bindings``        exchanges that are bound to exchanges
``compacting``      messages that are written again, so that old segments may go
``reading``         bodies that are read back from a journal
``paging``          bodies that leave the memory
``packing``         pages whose messages are no objects
==================  ===========================================================================================

Apart are ``reviewed`` and ``overlooked``: what reviews have found, in combinations too rare for so short a sweep. Each can be put
in by its name.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from tests.simulator.mutations import (
    bindings,
    branches,
    compacting,
    damaged_logs,
    duplicates,
    durability,
    fencing,
    handing_out,
    levels,
    membership,
    moves,
    operators,
    order,
    overlooked,
    packing,
    paging,
    parts,
    reading,
    rejoining,
    returns,
    reviewed,
    serving,
    transactions,
    turns,
    votes,
)
from tests.simulator.mutations.mutation import REQUIRED_WITHIN, Bug, Mutation

MUTATIONS: dict[str, Mutation] = {
    mutation.name: mutation
    for module in (
        *(durability, transactions, branches, votes, fencing, membership, rejoining, damaged_logs, order),
        *(
            handing_out,
            levels,
            operators,
            turns,
            parts,
            moves,
            returns,
            serving,
            duplicates,
            bindings,
            compacting,
            reading,
            paging,
            packing,
        ),
        *(reviewed, overlooked),
    )
    for mutation in vars(module).values()
    if isinstance(mutation, Mutation)
}
_APART = (*vars(reviewed).values(), *vars(overlooked).values())
CAMPAIGN = tuple(name for name, mutation in MUTATIONS.items() if mutation not in _APART)
"""Those that the ordinary sweep must find."""
REQUIRED = tuple(name for name, mutation in MUTATIONS.items() if mutation.within == REQUIRED_WITHIN)


def mutated(name: str) -> AbstractContextManager[Bug]:
    """The product has the bug of that name while this lasts; "" for the product as it is."""
    return MUTATIONS[name].in_force() if name else nullcontext(Bug())


__all__ = ["CAMPAIGN", "MUTATIONS", "REQUIRED", "Bug", "Mutation", "mutated"]
