"""A broker that compacts its journal: the power is cut at each operation, and what a restart holds is compared.

Everything that its clients have been told of is in its queues, once, in order, with its deadline and counts. So a cut between two
steps of a client leaves the queues as they were; a cut within a step leaves them as they were before it, or as they are behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

import attrs

from tests.power_cuts.cut_images import CutImages, Image, digest, storage_of
from tests.power_cuts.faults import FaultyDisk
from tests.power_cuts.life import BrokenError, TracedDisk
from tests.power_cuts.openings import Counts
from tests.unit.core.life.compaction_kit import Held, JournaledCore, held, one_of_each
from tests.unit.core.moving.speaker import Speaker
from understudy.broker.amqp.methods import BASIC_ACK, BASIC_NACK, TX_COMMIT, TX_SELECT
from understudy.broker.log.segment import JournalError
from understudy.broker.log.storage import StorageFullError
from understudy.testing.disk import MemoryStorage

SEGMENT_BYTES = 8 << 10


@attrs.define
class Watch:
    """Opens what a cut could leave while it is on.

    Attributes:
        counts: are added to.
        rng: draws.
        draws: images that are drawn at each moment.
        compacted: how many of the opened images had lost a segment, or held a note of messages written again.
    """

    counts: Counts
    rng: Random
    draws: int
    compacted: int = 0
    _held: dict[bytes, Held] = attrs.field(factory=dict)
    _found: list[Held] = attrs.field(factory=list)

    def look(self, disk: MemoryStorage) -> None:
        """A cut here: see what is held in each image; the step that is under way judges that when it ends."""
        cut = CutImages(disk)
        self.counts.points += 1
        images = cut.all() if cut.count <= self.draws else (cut.drawn(self.rng) for _ in range(self.draws))
        for image in images:
            self.counts.states += 1
            self._found.append(self._open(image))

    def _open(self, image: Image) -> Held:
        name = digest(image)
        found = self._held.get(name)
        if found is None:
            self.counts.images += 1
            try:
                core = JournaledCore(storage_of(image), SEGMENT_BYTES)
            except (JournalError, AssertionError, KeyError) as error:
                raise BrokenError(f"a start fails: {type(error).__name__}: {error}") from error
            found = self._held[name] = held(core.node)
            self.compacted += core.journal.first_segment > 1 or bool(core.node.state.again.unsettled)
            if self.counts.images % 16 == 0:
                self._go_on(core, found)
        return found

    def _go_on(self, core: JournaledCore, found: Held) -> None:
        """Work that was begun is ended, or begins anew, and another start finds the same."""
        core.keep_house()
        core.fill(Speaker(core), kib=16)
        core.keep_house()
        core.storage.crash_soft()
        again = held(JournaledCore(core.storage, SEGMENT_BYTES).node)
        if again != found:
            raise BrokenError(f"a start that goes on to compact: {_difference(found, again)}")

    def judge(self, what: str, before: Held, after: Held) -> None:
        """A step has ended: all that was found within it is one of the two."""
        for found in self._found:
            if found not in (before, after):
                raise BrokenError(f"{what}: {_difference(before, found)}")
        self._found.clear()


def _difference(expected: Held, found: Held) -> str:
    parts = []
    for name in sorted({*expected, *found}):
        one, other = expected.get(name, []), found.get(name, [])
        if one != other:
            parts.append(
                f"queue {name} holds {[each[1][:20] for each in other]} instead of {[each[1][:20] for each in one]}"
            )
    return "; ".join(parts)


class BrokerLife:
    """A broker with a client, and a disk that is watched."""

    def __init__(self, watch: Watch, disk: TracedDisk | None = None) -> None:
        self.disk = disk or TracedDisk()
        self.core = JournaledCore(self.disk, SEGMENT_BYTES)
        self.speaker = Speaker(self.core)
        for name in ("old", "other", "aside", "fill"):
            arguments = {"x-queue-type": "quorum", "x-delivery-limit": 9} if name == "other" else None
            self.speaker.declare(name, arguments)
        self._watch = watch

    def step(self, what: str, work: Callable[[], object]) -> None:
        """Do something, and judge each cut within it."""
        before = held(self.core.node)
        self.disk.watch = self._watch.look
        work()
        self._watch.look(self.disk)
        self.disk.watch = None
        self._watch.judge(what, before, held(self.core.node))


def compacting(life: BrokerLife) -> None:
    """Messages of each sort, passed by others until their segments are written again, while a client works."""
    core, speaker, step = life.core, life.speaker, life.step
    one_of_each(core, speaker)
    for number in range(6):
        speaker.publish("old", b"message %d" % number)
    core.fill(speaker, kib=40)
    step("a pass", core.keep_house)
    step("a message is taken", lambda: speaker.get("old"))
    step("a message comes", lambda: speaker.publish("old", b"later"))
    core.fill(speaker, kib=24)
    _take(speaker, "old")
    speaker.publish("other", b"of a transaction", channel=2)
    step("a pass beside a transaction", core.keep_house)
    step("commit", lambda: speaker.call(TX_COMMIT, channel=2))
    core.fill(speaker, kib=24)
    step("a second pass", core.keep_house)
    step("a third pass", core.keep_house)
    step("the oldest goes", lambda: speaker.get("old"))


def fail_in_a_pass(disk: FaultyDisk) -> tuple[BrokerLife, Held]:
    """Let an operation of a pass fail: the broker that has died of it, and what its clients were told.

    The disk fails from the begin of the pass on; a pass changes nothing that a client sees.
    """
    fails_at, disk.fails_at = disk.fails_at, -1
    life = BrokerLife(Watch(Counts(), Random(0), draws=0), disk)
    one_of_each(life.core, life.speaker)
    for number in range(3):
        life.speaker.publish("old", b"message %d" % number)
    life.core.fill(life.speaker, kib=24)
    told = held(life.core.node)
    disk.seen, disk.fails_at = 0, fails_at
    with suppress(OSError, JournalError, StorageFullError):
        life.core.keep_house()
    return life, told


def taking(life: BrokerLife) -> None:
    """A transaction has taken messages and given one back when these are written again; it commits when its records could go."""
    core, speaker, step = life.core, life.speaker, life.step
    for number in range(3):
        speaker.publish("old", b"taken %d" % number)
        speaker.publish("other", b"given back %d" % number)
    core.fill(speaker, kib=40)
    _take(speaker, "old")
    _take(speaker, "old")
    speaker.publish("aside", b"of a transaction", channel=2)
    _return(speaker)
    core.fill(speaker, kib=16)
    step("a pass beside a transaction", core.keep_house)
    step("commit", lambda: speaker.call(TX_COMMIT, channel=2))
    assert speaker.get("aside") is not None  # else it keeps the segment of the transaction
    core.fill(speaker, kib=24)
    step("notes are settled, and segments go", core.keep_house)
    core.fill(speaker, kib=24)
    step("a pass", core.keep_house)
    step("the oldest goes", lambda: speaker.get("old"))


def _take(speaker: Speaker, queue: str) -> None:
    """Take one message in a transaction, which is open then."""
    speaker.call(TX_SELECT, channel=2)
    taken = speaker.get(queue, no_ack=False, channel=2)
    if taken is not None:
        speaker.call(BASIC_ACK, taken["tag"], False, channel=2)


def drawn(life: BrokerLife, rng: Random, steps: int) -> None:
    """A longer life: so many steps of a client, and passes between them."""
    one_of_each(life.core, life.speaker)
    for number in range(steps):
        life.core.fill(life.speaker, kib=rng.choice((4, 8, 20)))
        queue = rng.choice(("old", "other"))
        body = b"drawn %d." % number * rng.choice((1, 20, 200))
        what = rng.randrange(6)
        if what < 2:
            life.step("a message comes", partial(life.speaker.publish, queue, body, expiration="3600000"))
        elif what == 2:
            life.step("a message is taken", partial(life.speaker.get, queue))
        elif what == 3:
            life.step("a message comes back", partial(_return, life.speaker))
        elif what == 4:
            _transact(life, queue, body)
        life.step("a pass", life.core.keep_house)


def _return(speaker: Speaker) -> None:
    found = speaker.get("other", no_ack=False)
    if found is not None:
        speaker.call(BASIC_NACK, found["tag"], False, True)


def _transact(life: BrokerLife, queue: str, body: bytes) -> None:
    """Take one and publish one in a transaction, beside a pass."""
    speaker = life.speaker
    _take(speaker, queue)
    speaker.publish(queue, body, channel=2)
    life.step("a pass beside a transaction", life.core.keep_house)
    life.step("commit", lambda: speaker.call(TX_COMMIT, channel=2))


def compact(watch: Watch, script: Callable[[BrokerLife], None] = compacting) -> None:
    """Cut the power at each operation of a broker that compacts.

    Raises:
        BrokenError: a restart holds something else than its clients were told.
    """
    life = BrokerLife(watch)
    script(life)
    if life.core.node.compaction.counts.passes < 2:
        raise BrokenError("this life has not compacted twice")
