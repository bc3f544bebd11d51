"""Known bugs: each a flag of the rules, with bounds under which it must be found.

``log_model`` is the name of the same bug in the shared model of the design (``model/log_model.py``), "" if it has none there. All
of that list are here but ``seen-first``, which is how the code does it: a promoted broker's epoch is durable with its EPOCH
record, and nothing is sent before.

``safe`` says why a rule can be broken without a promise being broken with it; such a mutation must be explored to its end like
the protocol itself. Rules of that kind are kept: each covers for the other if one day that one is not there.

Not here, and why:

* readiness without TxTrackers: a TRANSACTION piece comes before any record of the log, and a joiner is not guarded before it has
  acknowledged all pieces. So a tracker is always clear when it is asked; it is an assertion (``set_steps.tracked``).
* a backup that applies the COMMIT of a transaction that it refused: it acknowledges nothing at or past that PREPARE, so it is never
  listed with it. The simulator's checkers ask it of every broker.
* cuts, notes and pieces that are not durable, bugs of the journal, of order within a queue, of redelivery, of transient messages:
  what they break lies below or beside what is modelled here. The simulator has them (tests/simulator/mutations).
"""

from __future__ import annotations

import attrs

from tests.model.goals import AVAILABLE, LIVE
from tests.model.state import Bounds


@attrs.frozen
class Mutation:
    """A known bug.

    Attributes:
        breaks: a sentence.
        bounds: small ones that suffice.
        found: the promise of which a broken case must be found, or the goal that must be found out of reach.
        source: where the rule that it breaks comes from.
        by_hand: it is found too late, or explored for too long, for every check: by ``--mutations`` alone.
    """

    breaks: str
    bounds: Bounds
    found: str
    source: str
    log_model: str = ""
    safe: str = ""
    by_hand: bool = False

    @property
    def wanted(self) -> tuple[str, ...]:
        """The goals to look at."""
        return (self.found,) if self.found in (LIVE, AVAILABLE) else ()


more = attrs.evolve
ALONE = Bounds(brokers=2, min_insync=1)
BOTH = Bounds(brokers=2, min_insync=2)
THREE = Bounds(brokers=3, min_insync=2)
PLAIN = Bounds(brokers=3, min_insync=2, events=0, enqueue=True)
CATCH_UP = Bounds(brokers=2, min_insync=1, messages=True, trim=True)

DURABILITY = {
    "acknowledged-before-fsync": Mutation(
        "a backup acknowledges what it has received and not fsynced",
        more(BOTH, split=True, crashes=1),
        "G4",
        "DESIGN 3; BrokerReplicator.acknowledge",
        "ack-early",
    ),
    "stable-when-synced": Mutation(
        "what the primary has fsynced is stable and applied, before the backups have acknowledged it",
        more(BOTH, crashes=1),
        "G4",
        "DESIGN 3; Primary.stable_offset",
        "apply-early",
    ),
    "decided-at-local-fsync": Mutation(
        "a transaction is committed when its PREPARE is on the primary's disk",
        more(BOTH, crashes=1),
        "G4",
        "DESIGN 5, step 4",
        "commit-local",
    ),
    "minimum-not-asked": Mutation(
        "things become stable while the set is below min_insync",
        more(BOTH, wipes=1),
        "G4",
        "DESIGN 5, step 4; decision 0007",
    ),
}

VOTES = {
    "no-is-a-yes": Mutation(
        "a no counts as an answer like any other",
        more(BOTH, noes=1),
        "G4",
        "DESIGN 5, step 3 (QPID-5275)",
    ),
    "acknowledged-past-no": Mutation(
        "a backup acknowledges the PREPARE that it refused",
        more(BOTH, noes=1),
        "G4",
        "DESIGN 5, step 3",
        "ack-past-no",
    ),
    "joiners-no-counts": Mutation(
        "the no of a joiner that is not listed counts",
        more(THREE, noes=1, crashes=1),
        "G4",
        "DESIGN 5, step 4",
        "joiner-no",
    ),
    "no-ends-when-rollback-comes": Mutation(
        "a no is erased when ROLLBACK is received, and does not stand again when that is cut away",
        more(THREE, noes=1, crashes=1),
        "G1",
        "DESIGN 5, step 3",
        "no-literal",
    ),
    "no-outlives-its-prepare": Mutation(
        "a no goes on to hold acknowledgements back when its PREPARE has been cut away",
        more(BOTH, noes=1, crashes=1),
        LIVE,
        "DESIGN 5, step 3",
        "no-stuck",
    ),
    "rollback-told-early": Mutation(
        "the client is told rolled back when the no is heard, before ROLLBACK is stable",
        more(THREE, noes=1, crashes=1),
        "G2",
        "DESIGN 5, an explicit no",
        "rb-early",
    ),
    "stable-is-carried-over": Mutation(
        "a promoted broker decides by the stable position that it was told under the old epoch: PREPARE, whose ROLLBACK was cut",
        more(THREE, min_insync=3, noes=1, crashes=2),
        "G4",
        "DESIGN 5, promotion step 7",
    ),
    "stable-told-ahead-and-carried-over": Mutation(
        "the same, and an old batch tells the newest stable position",
        more(THREE, noes=1, crashes=1),
        "G4",
        "LogSender.messages; DESIGN 5, promotion step 7",
    ),
    "stable-told-ahead": Mutation(
        "an old batch tells the newest stable position",
        more(THREE, noes=1, crashes=1),
        "",
        "LogSender.messages",
        safe="what a backup was told decides nothing once it is promoted",
    ),
    "yes-without-looking": Mutation(
        "a joiner is not sent what is open and votes yes without looking at what it holds",
        more(CATCH_UP, events=2),
        "G1",
        "DESIGN 5, step 3; TransactionReplicator.vote",
    ),
}

EPOCHS = {
    "lower-epoch-followed": Mutation(
        "a backup follows a primary of a lower epoch than it has seen",
        more(THREE, takeovers=1),
        "G3",
        "DESIGN 3, epoch",
        "lower-epoch",
    ),
    "epoch-known-in-memory": Mutation(
        "an epoch is durable only with a record of it, is used before that, and a new process does not read the store first",
        more(PLAIN, takeovers=1, crashes=1),
        "G4",
        "DESIGN 3, epoch; BrokerReplicator.note_epoch, Primary._synced, HaBroker.start",
        "seen-late",
    ),
    "epoch-known-by-the-store": Mutation(
        "an epoch is durable only with a record of it, and is used before that",
        more(PLAIN, takeovers=1, crashes=1),
        "",
        "DESIGN 3, epoch; BrokerReplicator.note_epoch, Primary._synced",
        safe="every process reads the store before it links: who has forgotten an epoch that it led or followed learns of it",
        by_hand=True,
    ),
    "old-primary-followed-when-wiped": Mutation(
        "a new process follows a primary without having read the store's epoch first",
        more(PLAIN, takeovers=1, wipes=1),
        "G4",
        "HaBroker.start; decision 0007",
    ),
    "unlisted-is-promoted": Mutation(
        "a broker outside the set is promoted",
        more(ALONE, crashes=1),
        "G2",
        "DESIGN 3, promotable",
        "promote-unlisted",
    ),
    "wiped-leads": Mutation(
        "a broker whose data directory is empty campaigns because it is listed",
        more(ALONE, wipes=1, crashes=1),
        "G4",
        "decision 0007",
    ),
    "active-too-early": Mutation(
        "a promoted broker serves when its EPOCH is on its own disk",
        more(THREE, crashes=1),
        "G2",
        "DESIGN 5, promotion step 8",
        "active-early",
    ),
    "closed-is-aborted": Mutation(
        "a promotion rolls closed transactions back",
        more(ALONE, crashes=1),
        "G8",
        "DESIGN 5, promotion step 4; DESIGN 14",
        "abort-prep",
    ),
    "owed-commit-is-forgotten": Mutation(
        "who was caught up past a decision, and then leads, does not write the COMMIT that was lost with its primary",
        more(CATCH_UP, crashes=1),
        LIVE,
        "decision 0010",
    ),
}

MEMBERSHIP = {
    "expelled-after": Mutation(
        "a backup is not waited for from the moment that its removal is asked for",
        more(THREE, crashes=1),
        "G4",
        "DESIGN 5, out: write, then release",
        "expel-after",
    ),
    "conflict-ignored": Mutation(
        "a primary goes on as if its change were made when the store has refused it",
        more(ALONE, takeovers=1),
        "G4",
        "DESIGN 3, in-sync set",
        "cas-ignored",
    ),
    "version-not-compared": Mutation(
        "the compare-and-set compares the epoch and not the version",
        more(ALONE, lost=1),
        "G4",
        "DESIGN 3, in-sync set",
        "no-version",
    ),
    "lost-add-is-not-done": Mutation(
        "an add whose answer is lost counts as not done",
        more(ALONE, lost=1),
        "G4",
        "DESIGN 5; decision 0003",
        "add-lost",
    ),
    "read-is-believed": Mutation(
        "a set that is read back and does not show the change is taken for final",
        more(ALONE, lost=1),
        "G4",
        "decision 0003",
    ),
    "guard-not-held": Mutation(
        "completions do not wait for a guarded joiner",
        ALONE,
        "G4",
        "DESIGN 5, in: hold, then write",
    ),
    "listed-before-guard": Mutation(
        "a joiner is listed before it has acknowledged its guard",
        more(ALONE, split=True, crashes=1),
        "G4",
        "DESIGN 5, in: hold, then write",
        "add-early",
    ),
    "guarded-before-caught-up": Mutation(
        "a joiner is guarded and listed while pieces of its catch-up are still to come",
        CATCH_UP,
        "G7",
        "DESIGN 5; RemoteBackup.may_be_guarded",
    ),
    "old-acknowledgements-count": Mutation(
        "what a broker acknowledged before it was expelled counts when it joins again",
        more(BOTH, wipes=1, split=True, events=0, enqueue=True),
        "G4",
        "DESIGN 5, in: hold, then write",
    ),
    "set-below-its-minimum": Mutation(
        "a time-out shrinks the set below min_insync",
        more(PLAIN, crashes=1),
        AVAILABLE,
        "DESIGN 5, silence",
        "no-floor",
    ),
    "set-is-the-primary-alone": Mutation(
        "the set is the new primary alone after a promotion",
        more(PLAIN, crashes=2),
        AVAILABLE,
        "DESIGN 5, promotion step 3",
        "set-one",
    ),
    "set-keeps-the-old-primary": Mutation(
        "the old primary stays in the set at a promotion",
        more(PLAIN, crashes=2),
        "",
        "DESIGN 5, promotion step 3",
        "set-keep",
        safe="it is waited for, or removed, like any other member; without it a promotion is only quicker",
    ),
    "joins-late": Mutation(
        "only an active primary guards joiners",
        more(PLAIN, crashes=1),
        AVAILABLE,
        "DESIGN 5, promotion step 8",
        "join-late",
    ),
    "lost-data-stays": Mutation(
        "a listed broker that lost its data stays in a set that is at its minimum",
        more(BOTH, wipes=1),
        LIVE,
        "decision 0007",
    ),
}

REJOINING = {
    "tail-is-kept": Mutation(
        "a rejoining broker keeps its tail",
        more(ALONE, crashes=1),
        "G4",
        "DESIGN 3",
        "no-cut",
    ),
    "listed-is-caught-up": Mutation(
        "a catch-up touches a listed broker",
        more(CATCH_UP, wipes=1),
        "G7",
        "DESIGN 3",
        "catchup-listed",
    ),
    "commit-when-received": Mutation(
        "a backup applies a transaction when its COMMIT is received, not when it is stable",
        more(ALONE, crashes=2),
        LIVE,
        "decision 0002",
    ),
    "no-tx-catch-up": Mutation(
        "a joiner is not sent the events of transactions that are undecided",
        more(CATCH_UP, min_insync=2, wipes=1),
        LIVE,
        "DESIGN 5, tx catch-up (K-09)",
    ),
    "base-again-is-all": Mutation(
        "what a transaction got between one base of a catch-up and the next is not sent",
        more(CATCH_UP, events=2, wipes=1, crashes=1),
        "",
        "CatchUp._go_on",
        safe="the vote finds what is missing: the joiner's no ends its link, and the next catch-up brings all of it",
        by_hand=True,
    ),
    "skip-set-is-a-range": Mutation(
        "a catch-up skips everything up to the newest id that the joiner holds",
        more(CATCH_UP, events=0, enqueue=True, wipes=1),
        "G1",
        "DESIGN 4; ReplicatingSubscription",
    ),
    "nothing-is-dropped": Mutation(
        "a joiner keeps messages that its primary does not have any more",
        more(CATCH_UP, dequeue=True),
        "G1",
        "DESIGN 4; QueueReplicator.drop",
    ),
    "pieces-from-a-copy": Mutation(
        "a catch-up sends what stood in the queue at its base, though it has left the queue since",
        more(CATCH_UP, events=0, dequeue=True, wipes=1),
        "G1",
        "DESIGN 4",
    ),
}

OUTCOMES = {
    "outcome-at-once": Mutation(
        "an unknown name is answered rolled back before a record appended since is stable",
        more(ALONE, ask=True, takeovers=1),
        "G8",
        "DESIGN 12, outcome",
    ),
    "name-not-barred": Mutation(
        "a name that was answered rolled back may still commit",
        more(ALONE, ask=True),
        "G2",
        "DESIGN 12, outcome",
    ),
    "outcomes-forgotten": Mutation(
        "a catch-up does not bring the outcomes of transactions that are over",
        more(CATCH_UP, ask=True, crashes=1),
        "G8",
        "DESIGN 5; Meta",
    ),
}

BRANCHES = {
    "prepared-at-local-fsync": Mutation(
        "a manager is told prepare-ok when DTX_PREPARE is on the primary's disk",
        more(BOTH, branch=True, crashes=1),
        "G4",
        "DESIGN 6; Transactions.prepare_branch",
    ),
    "epoch-ends-prepared": Mutation(
        "a promotion rolls back what is in doubt, as it does with what is open",
        more(BOTH, branch=True, crashes=1),
        "G2",
        "DESIGN 6 (H-45); RecordTaking._take_epoch",
    ),
    "prepared-is-committed": Mutation(
        "a promotion commits what is in doubt: DTX_PREPARE is taken for PREPARE",
        more(BOTH, branch=True, crashes=1),
        "G2",
        "DESIGN 6; Applying.apply_prepare",
    ),
    "commit-is-voted-on": Mutation(
        "a backup may refuse the commit of a prepared branch, which is then rolled back",
        more(BOTH, branch=True, noes=1),
        "G4",
        "RecordTaking._take_prepare",
    ),
    "rollback-ok-at-once": Mutation(
        "a manager is told that its branch is rolled back before ROLLBACK is stable",
        more(BOTH, branch=True, crashes=1),
        "G4",
        "Transactions.roll_back_closed",
    ),
    "gone-at-once": Mutation(
        "who does not know a branch says 404 before a record appended since is stable",
        more(ALONE, branch=True, takeovers=1),
        "G2",
        "DtxManager._not_there",
    ),
    "asked-while-recovering": Mutation(
        "a promoted broker that does not serve yet, and has not taken over what is in doubt, takes questions for it",
        more(BOTH, branch=True, crashes=1),
        "G4",
        "Distributed.carry_out; DtxManager.adopt",
    ),
    "prepare-not-in-catch-up": Mutation(
        "a joiner is sent the events of a branch in doubt, and not its DTX_PREPARE",
        more(CATCH_UP, branch=True),
        "G4",
        "TxReplicatingSubscription",
    ),
    "no-to-what-is-applied-is-late": Mutation(
        "a promoted broker that has applied DTX_PREPARE, whose ROLLBACK was cut, takes no refusal of it any more",
        more(THREE, branch=True, noes=1, crashes=1),
        AVAILABLE,
        "Primary._refused",
        by_hand=True,
    ),
}

MOVES = {
    "move-is-two-records": Mutation(
        "a message leaves its queue by one record and enters another by the next",
        more(BOTH, events=0, messages=True, move=True, crashes=1),
        "G1",
        "decision 0052; Moving._append_move",
    ),
    "catch-up-forgets-what-moves": Mutation(
        "a message that moves before a catch-up has sent it is sent neither in its old queue nor in its new one",
        more(CATCH_UP, events=0, move=True, wipes=1),
        "G1",
        "CatchUp.moved",
    ),
    "moved-is-not-dropped": Mutation(
        "a joiner keeps a message in its old queue that its primary has moved",
        more(CATCH_UP, events=0, move=True, crashes=1),
        "G1",
        "DESIGN 4; QueueReplicator.drop",
    ),
    "taken-is-moved": Mutation(
        "a primary moves a message that a client has taken",
        more(CATCH_UP, events=0, dequeue=True, move=True, crashes=1),
        "",
        "Queue.mark_dequeuing; Applying.apply_move",
        safe="a MOVE without a body changes nothing where its message is not in the old queue",
    ),
}

MUTATIONS: dict[str, Mutation] = DURABILITY | VOTES | EPOCHS | MEMBERSHIP | REJOINING | OUTCOMES | BRANCHES | MOVES
