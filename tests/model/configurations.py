"""Configurations explored completely at every check: many small worlds instead of one large one.

Each is a question. The number of states is part of it: rules that are changed change it, and that should be seen.
"""

from __future__ import annotations

import attrs

from tests.model.goals import AVAILABLE, LIVE
from tests.model.state import Bounds


@attrs.frozen
class Configuration:
    """Bounds, the goals that must stay reachable within them, and how many states there are."""

    asks: str
    bounds: Bounds
    wanted: tuple[str, ...]
    states: int


THREE = Bounds(brokers=3, min_insync=2)
PLAIN = Bounds(brokers=3, min_insync=2, events=0, enqueue=True)
ALONE = Bounds(brokers=2, min_insync=1)
BOTH = Bounds(brokers=2, min_insync=2)
more = attrs.evolve

CONFIGURATIONS: dict[str, Configuration] = {
    "commit": Configuration(
        "a transaction, and any one of three brokers dies at any moment",
        more(THREE, crashes=1),
        (LIVE, AVAILABLE),
        17_135,
    ),
    "takeover": Configuration(
        "a transaction, and a primary that is cut off goes on beside its successor",
        more(THREE, takeovers=1),
        (LIVE, AVAILABLE),
        17_289,
    ),
    "refusal": Configuration(
        "a backup refuses the transaction, and a broker dies",
        more(THREE, noes=1, crashes=1),
        (),
        144_305,
    ),
    "refusal-of-two": Configuration(
        "the same with two brokers that are both needed, a second crash, and power that fails",
        more(BOTH, noes=1, crashes=2, powers=1),
        (LIVE,),
        101_492,
    ),
    "refusal-alone": Configuration(
        "the same where one broker may go on alone",
        more(ALONE, noes=1, crashes=1, takeovers=1),
        (LIVE,),
        34_037,
    ),
    "two-crashes": Configuration(
        "a message, and brokers die twice",
        more(PLAIN, crashes=2),
        (LIVE, AVAILABLE),
        44_492,
    ),
    "alone": Configuration(
        "a transaction that the client may roll back, two brokers of which one may go on alone, two crashes",
        more(ALONE, crashes=2, rollback=True),
        (LIVE,),
        19_637,
    ),
    "power": Configuration(
        "power fails everywhere",
        more(THREE, powers=1),
        (LIVE,),
        21_029,
    ),
    "power-split": Configuration(
        "power fails everywhere; a backup's fsync comes after its append",
        more(BOTH, powers=1, crashes=1, noes=1, split=True),
        (LIVE,),
        28_200,
    ),
    "lost-answers": Configuration(
        "an answer of the store is lost, or a request lands late, that of a campaign too",
        more(ALONE, lost=1, crashes=1, takeovers=1),
        (LIVE,),
        53_491,
    ),
    "lost-answers-of-three": Configuration(
        "the same with three brokers and a message",
        more(PLAIN, lost=1, crashes=1),
        (LIVE, AVAILABLE),
        10_851,
    ),
    "catch-up": Configuration(
        "a broker is caught up while messages come and go",
        more(ALONE, crashes=2, messages=True, trim=True, events=0, enqueue=True, dequeue=True),
        (LIVE,),
        37_375,
    ),
    "catch-up-in-transaction": Configuration(
        "a broker is caught up while a transaction takes one message and brings another, and a third is taken",
        more(ALONE, crashes=1, messages=True, trim=True, events=2, dequeue=True),
        (LIVE,),
        90_900,
    ),
    "wiped-in-transaction": Configuration(
        "a transaction takes a message and brings another while a broker that lost its data is caught up, and a broker dies",
        more(ALONE, wipes=1, crashes=1, messages=True, trim=True, events=2),
        (),
        132_595,
    ),
    "wiped": Configuration(
        "a listed broker comes back with an empty disk, and a broker dies",
        more(BOTH, wipes=1, crashes=1, messages=True, trim=True),
        (LIVE,),
        21_749,
    ),
    "wiped-of-three": Configuration(
        "the same with three brokers, and an ex-primary that the empty one must not follow",
        more(PLAIN, wipes=1, takeovers=1),
        (LIVE,),
        67_415,
    ),
    "outcome": Configuration(
        "somebody asks what became of the transaction, an ex-primary too",
        more(ALONE, ask=True, takeovers=1),
        (LIVE,),
        6_920,
    ),
    "branch": Configuration(
        "a branch is prepared and decided by its manager, and any one of three brokers dies at any moment",
        more(THREE, branch=True, crashes=1),
        (LIVE, AVAILABLE),
        65_100,
    ),
    "branch-takeover": Configuration(
        "a branch, and a primary that is cut off goes on beside its successor; the manager may ask either",
        more(THREE, branch=True, takeovers=1),
        (LIVE, AVAILABLE),
        67_089,
    ),
    "branch-alone": Configuration(
        "a branch that may be rolled back while it is open, two brokers of which one may go on alone, an ex-primary, a crash",
        more(ALONE, branch=True, rollback=True, crashes=1, takeovers=1),
        (LIVE,),
        35_096,
    ),
    "branch-of-two": Configuration(
        "a branch that may be refused, two brokers that are both needed, a crash, and power that fails",
        more(BOTH, branch=True, crashes=1, powers=1, noes=1),
        (LIVE,),
        47_736,
    ),
    "branch-catch-up": Configuration(
        "a broker is caught up while a branch that takes one message and brings another is prepared and decided, and a broker dies",
        more(ALONE, branch=True, crashes=1, messages=True, trim=True, events=2),
        (LIVE,),
        25_364,
    ),
    "branch-refusal": Configuration(
        "a broker refuses a branch, in its catch-up too, and a broker dies",
        more(ALONE, branch=True, crashes=1, noes=1, messages=True, trim=True),
        (LIVE,),
        46_420,
    ),
    "move": Configuration(
        "a message moves to another queue or is taken, and any one of three brokers dies",
        more(THREE, crashes=1, messages=True, events=0, dequeue=True, move=True),
        (LIVE, AVAILABLE),
        6_084,
    ),
    "move-takeover": Configuration(
        "a message moves, and a primary that is cut off moves it too",
        more(THREE, takeovers=1, messages=True, events=0, move=True),
        (LIVE, AVAILABLE),
        2_177,
    ),
    "move-catch-up": Configuration(
        "a message moves or is taken while a broker is caught up, and brokers die twice",
        more(ALONE, crashes=2, messages=True, trim=True, events=0, dequeue=True, move=True),
        (LIVE,),
        10_593,
    ),
    "move-wiped": Configuration(
        "a message moves while a broker that lost its data is caught up, and a broker dies",
        more(ALONE, wipes=1, crashes=1, messages=True, trim=True, events=0, move=True),
        (),
        9_004,
    ),
}

LARGER: dict[str, Configuration] = {
    "refusal-of-all": Configuration(
        "a backup refuses the transaction, all three are needed, and brokers die twice",
        more(THREE, min_insync=3, noes=1, crashes=2),
        (),
        292_506,
    ),
    "two-crashes-in-transaction": Configuration(
        "a transaction, and any of three brokers die twice",
        more(THREE, crashes=2),
        (LIVE, AVAILABLE),
        228_993,
    ),
    "crash-beside-ex-primary": Configuration(
        "a transaction, a primary that is cut off, and a crash",
        more(THREE, crashes=1, takeovers=1),
        (),
        461_866,
    ),
    "transaction-and-message": Configuration(
        "a transaction and a message together, and a crash",
        more(THREE, enqueue=True, crashes=1),
        (),
        202_821,
    ),
    "lost-answers-in-transaction": Configuration(
        "a transaction, an answer of the store is lost, and a crash",
        more(THREE, lost=1, crashes=1),
        (),
        64_842,
    ),
    "wiped-in-transaction": Configuration(
        "a transaction, a listed one of three brokers comes back with an empty disk, and a crash",
        more(THREE, wipes=1, crashes=1),
        (),
        348_992,
    ),
    "four": Configuration(
        "four brokers, a message, and a crash",
        more(PLAIN, brokers=4, crashes=1),
        (),
        31_327,
    ),
    "everything-of-two": Configuration(
        "two brokers of which one may go on alone: a refusal, a crash, an ex-primary, a lost answer",
        more(ALONE, noes=1, crashes=1, takeovers=1, lost=1),
        (),
        189_340,
    ),
    "refusal-beside-ex-primary": Configuration(
        "a backup refuses the transaction, and a primary that is cut off goes on",
        more(THREE, noes=1, takeovers=1),
        (),
        118_338,
    ),
    "refusal-split": Configuration(
        "a backup refuses the transaction, a crash; a backup's fsync comes after its append",
        more(THREE, noes=1, crashes=1, split=True),
        (),
        559_015,
    ),
    "refusal-and-two-crashes": Configuration(
        "a backup refuses the transaction, and any of three brokers die twice",
        more(THREE, noes=1, crashes=2),
        (),
        2_544_149,
    ),
    "branch-refusal-of-three": Configuration(
        "a backup refuses a branch, and any one of three brokers dies",
        more(THREE, branch=True, noes=1, crashes=1),
        (LIVE, AVAILABLE),
        701_836,
    ),
    "branch-refusal-beside-ex-primary": Configuration(
        "a backup refuses a branch, a primary that is cut off goes on, and a crash, where one broker may go on alone",
        more(ALONE, branch=True, noes=1, crashes=1, takeovers=1),
        (LIVE,),
        148_074,
    ),
    "branch-wiped": Configuration(
        "a branch takes a message and brings another while a broker that lost its data is caught up, and a broker dies",
        more(ALONE, branch=True, wipes=1, crashes=1, messages=True, trim=True, events=2),
        (),
        404_501,
    ),
    "move-wiped-in-transaction": Configuration(
        "the same beside a transaction",
        more(ALONE, wipes=1, crashes=1, messages=True, trim=True, move=True),
        (),
        671_149,
    ),
    "branch-lost-answers": Configuration(
        "a branch, an answer of the store is lost, and a crash",
        more(ALONE, branch=True, lost=1, crashes=1),
        (LIVE,),
        23_527,
    ),
}
"""What is explored by hand when the protocol is changed: ``python -m tests.model --larger``."""
