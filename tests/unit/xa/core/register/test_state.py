"""Decisions of the state server: who owns what, who recovers what, and in which order."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable

import msgspec
import pytest

from tests.unit.xa.rig import NOW_MS, hello
from understudy.xa.core.register import state
from understudy.xa.core.register.attempts import FIRST_MS, MOST_MS, pause_ms
from understudy.xa.core.register.entry import Entry
from understudy.xa.core.register.pending import PendingTable
from understudy.xa.core.register.routing import merged
from understudy.xa.core.register.state import StateCore
from understudy.xa.core.register.wire import (
    MAX_LINE_OCTETS,
    MAX_LISTED,
    Begin,
    Claim,
    Claimed,
    Decide,
    Done,
    Failed,
    Forget,
    Hello,
    Heuristic,
    Join,
    List,
    Listing,
    Nothing,
    Ok,
    Refused,
    Release,
    Reply,
    Request,
    Rule,
    Started,
    Take,
    Waits,
    Watch,
    line_of,
    reply_of,
    request_of,
)


class Server:
    """A core, and what each connection is answered."""

    def __init__(self, shards: int = 1) -> None:
        self.core = StateCore([{} for _ in range(shards)])
        self.now_ms = NOW_MS

    def say(self, connection: int, request: Request) -> Reply:
        return self.core.received(connection, request, self.now_ms).reply

    def join(self, connection: int, job: str = "job", fingerprint: str = "f") -> Reply:
        return self.say(connection, hello(job, fingerprint))

    def begun(self, connection: int, gid: str, job: str = "job") -> None:
        self.join(connection, job)
        assert self.say(connection, Begin(gid, ["bank"])) == Ok()

    def restarted(self) -> None:
        shards = range(len(self.core._shards))
        self.core = StateCore([{one.gid: one for one in copy.deepcopy(self.core.image(shard))} for shard in shards])


def code(reply: Reply) -> str:
    assert isinstance(reply, Refused), reply
    return reply.code


def gid_of(reply: Reply) -> str:
    assert isinstance(reply, Claimed), reply
    return reply.entry.gid


def test_hello_comes_first_and_once_and_in_this_version() -> None:
    server = Server()
    assert code(server.say(1, Claim())) == "protocol"
    assert code(server.say(1, Hello(2, "job", "p", "f"))) == "version"
    assert code(server.say(1, Hello(1, "", "p", "f"))) == "protocol"
    assert server.join(1) == Ok()
    assert code(server.join(1)) == "protocol"


def test_an_idle_client_leaves_nothing_behind() -> None:
    server = Server()
    server.join(1)
    server.core.left(1)
    server.join(2)
    assert server.say(2, Claim()) == Nothing()


def test_a_client_that_goes_leaves_its_transaction_to_its_job_alone() -> None:
    server = Server()
    server.begun(1, "a")
    server.core.left(1)
    server.join(2, "other")
    assert server.say(2, Claim()) == Nothing()
    assert server.say(2, Begin("b", ["bank"])) == Ok()
    server.join(3)
    assert code(server.say(3, Begin("c", ["bank"]))) == "recover_first"
    assert gid_of(server.say(3, Claim())) == "a"


def test_after_a_restart_every_transaction_waits_for_recovery() -> None:
    server = Server(4)
    for number in range(8):
        server.begun(number, f"gid{number}")
    server.say(3, Decide("gid3"))
    server.say(4, Done("gid4"))
    server.restarted()
    server.join(20)
    claimed = {}
    while isinstance(reply := server.say(20, Claim()), Claimed):
        claimed[reply.entry.gid] = reply.entry.commit
    assert claimed == {f"gid{number}": number == 3 for number in range(8) if number != 4}


def test_each_transaction_is_given_to_one_client() -> None:
    server = Server(2)
    for number in range(3):
        server.begun(number, f"gid{number}")
    for number in range(3):
        server.core.left(number)
    for number in range(10, 20):
        server.join(number)
    replies = [server.say(number, Claim()) for number in range(10, 20)]
    assert sorted(gid_of(reply) for reply in replies if isinstance(reply, Claimed)) == ["gid0", "gid1", "gid2"]
    assert replies.count(Nothing()) == 7
    assert server.say(19, Begin("new", [])) == Ok()  # recovery has started, and need not be over


@pytest.mark.parametrize("shards", [1, 4])
def test_one_of_twenty_workers_dies_and_any_other_one_recovers(shards: int) -> None:
    """The transactions of the nineteen go on; each worker, old or new, is told to recover before it begins a new one."""
    for comes in (*range(20), 20):
        server = Server(shards)
        for number in range(20):
            server.begun(number, f"gid{number}")
        server.core.left(7)
        if comes in (7, 20):
            server.join(comes)
        else:
            assert server.say(comes, Done(f"gid{comes}")) == Ok()
        assert code(server.say(comes, Begin("new", ["bank"]))) == "recover_first"
        assert gid_of(server.say(comes, Claim())) == "gid7"
        assert server.say(comes, Begin("new", ["bank"])) == Ok()
        others = {f"gid{number}" for number in ({*range(20)} - {comes}) | {7}}
        assert {one.gid for shard in range(shards) for one in server.core.image(shard)} == {*others, "new"}


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_a_transaction_has_one_owner_or_waits_once(seed: int) -> None:
    """Clients come, work, recover and die in any order; the server restarts, too."""
    chance = random.Random(seed)
    server = Server(4)
    server.core = StateCore([{} for _ in range(4)], max_attempts=2)
    clients: list[int] = []
    owned: dict[str, int] = {}
    for step in range(600):
        if not clients or chance.random() < 0.15:
            clients.append(step)
            assert server.join(step, f"job{step % 3}") == Ok()
        one = chance.choice(clients)
        mine = [gid for gid, owner in owned.items() if owner == one]
        server.now_ms += chance.randrange(500)
        what = chance.choice(["begin", "begin", "claim", "early", "done", "release", "failed", "leave", "restart"])
        if what == "begin" and server.say(one, Begin(f"gid{step}", ["bank"])) == Ok():
            owned[f"gid{step}"] = one
        elif what in ("claim", "early") and isinstance(reply := server.say(one, Claim(early=what == "early")), Claimed):
            assert reply.entry.gid not in owned
            owned[reply.entry.gid] = one
        elif what in ("done", "release", "failed") and mine:
            ends: dict[str, Request] = {
                "done": Done(mine[0]),
                "release": Release(mine[0], ""),
                "failed": Failed(mine[0], "", refused=chance.random() < 0.5),
            }
            assert server.say(one, ends[what]) == Ok()
            del owned[mine[0]]
        elif what == "leave":
            server.core.left(one)
            clients.remove(one)
            owned = {gid: owner for gid, owner in owned.items() if owner != one}
        elif what == "restart" and chance.random() < 0.1:
            server.restarted()
            clients, owned = [], {}
        entries = {entry.gid: entry for shard in range(4) for entry in server.core.image(shard)}
        server.core.tick(server.now_ms)
        waits = [*(gid for _, _, gid in server.core.pending), *server.core.paused]
        parked = {gid for gid, entry in entries.items() if entry.parked}
        assert len(waits) == len(set(waits))
        assert {*waits, *owned, *parked} == entries.keys()
        assert len(waits) + len(owned) + len(parked) == len(entries)


def test_pauses_grow_to_a_minute_and_differ() -> None:
    gids = [f"{number:064x}" for number in range(100)]
    for attempts in (1, 2, 3, 10, 10_000):
        whole = min(FIRST_MS << min(attempts - 1, 20), MOST_MS)
        pauses = [pause_ms(gid, attempts) for gid in gids]
        assert all(whole // 2 <= pause <= whole for pause in pauses)
        assert len(set(pauses)) > 50


def test_what_is_due_waits_again_also_if_the_clock_was_set_back() -> None:
    server = Server()
    server.begun(1, "a")
    server.begun(2, "b")
    server.core.left(1)
    server.core.left(2)
    told: list[tuple[str, bool]] = []
    server.core.pending.subscribe(lambda _job, _shard, gid, waits: told.append((gid, waits)))
    server.join(3)
    for gid in ("a", "b"):
        assert gid_of(server.say(3, Claim())) == gid
        server.say(3, Failed(gid, "down"))
    assert server.say(3, Claim()) == Nothing()
    assert gid_of(server.say(3, Take("b"))) == "b"
    assert server.say(3, Done("b")) == Ok()
    told.clear()
    server.core.tick(server.now_ms + MOST_MS)
    assert told == [("a", True)]
    assert gid_of(server.say(3, Claim())) == "a"
    server.say(3, Failed("a", "down"))
    server.core.tick(server.now_ms - 2 * MOST_MS)
    assert gid_of(server.say(3, Claim())) == "a"


def test_own_shard_first_then_the_first_other_one() -> None:
    server = Server(3)
    for number in range(6):  # shards 0, 1, 2, 0, 1, 2
        server.begun(number, f"gid{number}")
    for number in range(6):
        server.core.left(number)
    server.join(10, "other")
    server.join(11)  # on shard 1
    order = [gid_of(server.say(11, Claim())) for _ in range(6)]
    assert order == ["gid1", "gid4", "gid0", "gid3", "gid2", "gid5"]


def test_another_profile_is_refused_and_the_entry_is_untouched() -> None:
    server = Server()
    server.begun(1, "a")
    server.core.left(1)
    before = copy.deepcopy(server.core.image(0))
    assert code(server.join(2, fingerprint="g")) == "wrong_profile"
    assert code(server.say(2, Claim())) == "wrong_profile"
    assert code(server.say(2, Take("a"))) == "wrong_profile"
    assert server.core.image(0) == before
    server.join(3)
    assert gid_of(server.say(3, Claim())) == "a"


@pytest.mark.parametrize(
    "request_",
    [Started("a", {}), Join("a", "x"), Decide("a"), Done("a"), Release("a", ""), Heuristic("a", {}), Failed("a", "")],
)
def test_only_the_owner_changes_a_transaction(request_: Request) -> None:
    server = Server()
    server.begun(1, "a")
    server.join(2)
    before = copy.deepcopy(server.core.image(0))
    assert code(server.say(2, request_)) == "not_owner"
    server.core.left(1)
    assert code(server.say(1, request_)) == "protocol"
    assert server.core.image(0) == before
    server.join(3)
    assert code(server.say(3, msgspec.structs.replace(request_, gid="b"))) == "unknown"


def test_a_name_is_used_once() -> None:
    server = Server()
    server.begun(1, "a")
    server.join(2, "other")
    assert code(server.say(2, Begin("a", []))) == "protocol"
    for bad in ("", "x" * 65, "ü", "a\n"):
        assert code(server.say(2, Begin(bad, []))) == "protocol"


def test_what_must_be_durable_before_the_reply() -> None:
    core = StateCore([{}])
    core.received(1, hello(), NOW_MS)
    waits = {}
    for request in (Begin("a", ["x"]), Started("a", {"x": 0}), Join("a", "y"), Decide("a"), Done("a")):
        reaction = core.received(1, request, NOW_MS)
        assert reaction.record is not None
        waits[type(request).__name__] = not reaction.at_once
    assert waits == {"Begin": True, "Started": False, "Join": True, "Decide": True, "Done": False}


def test_a_heuristic_entry_stays_until_it_is_forgotten() -> None:
    server = Server()
    server.begun(1, "a")
    assert code(server.say(1, Forget("a"))) == "protocol"
    server.say(1, Heuristic("a", {"bank": 6}))
    server.say(1, Done("a"))
    server.core.left(1)
    server.restarted()
    server.join(2)
    assert server.say(2, Claim()) == Nothing()
    listing = server.say(2, List())
    assert isinstance(listing, Listing)
    assert [(one.state, one.entry.heuristics) for one in listing.entries] == [("heuristic", {"bank": 6})]
    assert code(server.say(2, Take("a"))) == "protocol"
    assert server.say(2, Forget("a")) == Ok()
    assert server.core.image(0) == []


def test_a_parked_one_waits_for_a_year_and_is_taken_by_name() -> None:
    server = Server()
    server.begun(1, "a")
    server.core.left(1)
    for number in range(2, 12):
        server.join(number)
        assert gid_of(server.say(number, Claim())) == "a"
        server.say(number, Failed("a", "no permission", refused=True))
        server.now_ms += MOST_MS
    for _ in range(3):
        server.restarted()
    server.join(20)
    assert server.say(20, Claim()) == Nothing()
    year = 365 * 86_400_000
    listing = server.core.received(20, List(), NOW_MS + year).reply
    assert isinstance(listing, Listing)
    assert [(one.state, listing.now_ms - one.entry.began_ms) for one in listing.entries] == [("parked", year)]
    assert gid_of(server.say(20, Take("a"))) == "a"
    assert code(server.say(20, Take("a"))) == "not_owner"
    assert server.say(20, Done("a")) == Ok()
    assert server.core.image(0) == []


def test_what_an_operator_does_with_orphans_is_kept_until_it_is_forgotten() -> None:
    server = Server(2)
    server.join(1)
    assert server.say(1, Rule("x", {"bank 1": "rollback asked for"}, new=False)) == Refused(
        "unknown", "transaction x is not known"
    )
    assert server.say(1, Rule("x", {"bank 1": "rollback asked for"})) == Ok()
    assert server.say(1, Rule("x", {"bank 1": "rollback: OK", "queues 1": "rollback asked for"}, new=False)) == Ok()
    (entry,) = server.core.image(0) + server.core.image(1)
    assert entry.ruled == {"bank 1": "rollback: OK", "queues 1": "rollback asked for"}
    assert server.core.counts()["ruled"] == 1
    for request in (Begin("x", []), Take("x"), Rule("y", {})):
        assert isinstance(server.say(1, request), Refused)
    assert server.say(1, Begin("a", [])) == Ok()  # it does not wait for recovery
    assert isinstance(server.say(1, Rule("a", {"bank 1": "rollback asked for"})), Refused)
    again = StateCore([{"x": entry}])
    assert again.counts() == {"active": 0, "pending": 0, "parked": 0, "heuristic": 0, "ruled": 1}
    assert server.say(1, Forget("x")) == Ok()
    assert server.core.counts()["ruled"] == 0


def test_a_list_comes_in_pages() -> None:
    server = Server(2)
    server.join(1)
    gids = [f"{number:04}" for number in range(MAX_LISTED + 10)]
    for gid in gids:
        server.say(1, Begin(gid, []))
    found: list[str] = []
    more = True
    while more:
        page = server.say(1, List(after=found[-1] if found else "", job="job"))
        assert isinstance(page, Listing)
        found += [one.entry.gid for one in page.entries]
        more = page.more
    assert found == gids
    assert server.core.counts() == {"active": len(gids), "pending": 0, "parked": 0, "heuristic": 0, "ruled": 0}


def listed(server: Server, between: Callable[[], object] = lambda: None) -> list[str]:
    """All pages of a list; something happens after each page."""
    found: list[str] = []
    more = True
    while more:
        page = server.say(1, List(after=found[-1] if found else ""))
        assert isinstance(page, Listing)
        found += [one.entry.gid for one in page.entries]
        more = page.more
        between()
    return found


def test_the_ids_of_a_list_are_sorted_once_for_all_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    server.join(1)
    gids = [f"{number:05}" for number in range(8 * MAX_LISTED)]
    for gid in random.Random(7).sample(gids, len(gids)):
        server.say(1, Begin(gid, []))
    lengths: list[int] = []

    def counted(values: Iterable[str]) -> list[str]:
        found = sorted(values)
        lengths.append(len(found))
        return found

    monkeypatch.setattr(state, "sorted", counted, raising=False)
    assert listed(server) == gids
    assert lengths == [len(gids)]


def test_what_ends_between_two_pages_is_left_out() -> None:
    server = Server()
    server.join(1)
    gids = [f"{number:05}" for number in range(4 * MAX_LISTED)]
    for gid in gids:
        server.say(1, Begin(gid, []))

    def all_but_the_last_end() -> None:
        for gid in gids[MAX_LISTED:-1]:
            server.say(1, Done(gid))
        server.say(1, Begin(f"{gids[-1]}-later{len(server.core.image(0))}", []))

    assert listed(server, all_but_the_last_end) == [*gids[:MAX_LISTED], gids[-1]]


def test_the_table_has_three_levels() -> None:
    table = PendingTable()
    assert (table.has("j"), table.first_shard("j"), table.take("j", 0), len(table)) == (False, None, None, 0)
    for shard, gid in ((2, "a"), (1, "b"), (2, "c")):
        table.insert("j", shard, gid)
    assert (table.has("j"), table.has("j", 0), table.has("j", 2), table.first_shard("j")) == (True, False, True, 1)
    assert [table.take("j", 2), table.take("j", 2), table.take("j", 2)] == ["a", "c", None]
    table.remove("j", 1, "b")
    assert (table.has("j"), len(table)) == (False, 0)


def test_the_table_does_not_search_its_queues() -> None:
    """Ten thousand transactions of one job wait after a restart of the server."""
    compared = 0

    class Gid(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    table = PendingTable()
    gids = [Gid(f"{number:064x}") for number in range(2000)]
    for gid in gids:
        table.insert("j", 0, gid)
    for gid in reversed(gids):
        table.remove("j", 0, gid)
    assert len(table) == 0
    assert compared < 4 * len(gids)


def test_messages_survive_the_wire() -> None:
    entry = Entry(gid="a", job="j", profile="p", fingerprint="f", resources=["x"], began_ms=1)
    for request in (
        hello(),
        Begin("a", ["x"]),
        Claim(),
        List(after="a"),
        Failed("a", '\n"ü'),
        Rule("a", {"b": "c"}),
        Watch(),
    ):
        assert request_of(line_of(request)) == request
        assert line_of(request).count(b"\n") == 1
    for reply in (Ok(), Refused("c", "t"), Claimed(entry), Nothing(), Listing([], False, 1), Waits("j", 0, "a", True)):
        assert reply_of(line_of(reply)) == reply


def test_a_page_of_a_list_is_never_too_long_for_a_line() -> None:
    """Long reasons make short pages; the pages of several workers together are one, and no longer."""
    server = Server()
    gids = [f"{number:05}" for number in range(MAX_LISTED + 1)]
    for number, gid in enumerate(gids):
        server.begun(number, gid, job=gid)
        assert server.say(number, Release(gid, "\x01" * 5000)) == Ok()
    server.join(len(gids), "looks")
    found: list[str] = []
    while True:
        page = server.say(len(gids), List(after=found[-1] if found else ""))
        assert isinstance(page, Listing)
        for whole in (page, merged([page, page, page])):
            assert len(line_of(whole)) <= MAX_LINE_OCTETS
        found += [one.entry.gid for one in page.entries]
        if not page.more:
            break
    assert found == gids


@pytest.mark.parametrize(
    "request_",
    [
        Begin("x" * 65, []),
        Begin("a b\n", []),
        Begin("a", ["r"] * 1001),
        Begin("a", [""]),
        Begin("a", ["bänk"]),
        Join("mine", "r" * 257),
        Join("mine", "bank~2"),
        Join("mine", "a\n"),
        Started("mine", {"bank": 99}),
        Started("mine", {"ba\x1bnk": 0}),
        Started("mine", {f"b{number}": 0 for number in range(1001)}),
        Heuristic("mine", {"bank": 99}),
        Heuristic("mine", {"bank": 0}),
        Heuristic("mine", {"bank~x": 6}),
        Heuristic("mine", {f"b{number}": 6 for number in range(1001)}),
        Rule("a", {}),
        Rule("a", {f"b{number}": "" for number in range(1001)}),
        Rule("a", {"b": "\x01" * 100_000}),
        Rule("", {"b": ""}),
        Rule("x" * 601, {"b": ""}),
        Rule("a\n", {"b": ""}),
    ],
)
def test_what_could_make_a_status_too_large_is_refused(request_: Request) -> None:
    server = Server()
    server.begun(1, "mine")
    assert code(server.say(1, request_)) == "protocol"
    (entry,) = server.core.image(0)
    assert (entry.resources, entry.started, entry.heuristics) == (["bank"], {}, {})


def test_the_branches_of_a_transaction_are_bounded_one_by_one() -> None:
    server = Server()
    server.begun(1, "mine")
    for number in range(1, 1000):
        assert server.say(1, Join("mine", f"r{number}")) == Ok()
    assert code(server.say(1, Join("mine", "more"))) == "protocol"
    assert server.say(1, Join("mine", "r1")) == Ok()


@pytest.mark.parametrize("hello_", [hello("a\x1b[2J"), hello(fingerprint="\n"), hello("")])
def test_names_that_a_terminal_would_obey_are_refused(hello_: Hello) -> None:
    assert code(Server().say(1, hello_)) == "protocol"


def test_who_gives_way_is_given_others_first_of_all_shards() -> None:
    server = Server(2)
    for number, gid in enumerate(("a", "b", "c")):
        server.begun(number, gid)
    for number in range(3):
        server.core.left(number)
    server.join(10)
    claimed = []
    for _ in range(6):
        claimed.append(gid_of(server.say(10, Claim())))
        assert server.say(10, Release(claimed[-1], "busy")) == Ok()
    assert sorted(claimed[:3]) == sorted(claimed[3:]) == ["a", "b", "c"]
    assert [one.attempts for shard in range(2) for one in server.core.image(shard)] == [0, 0, 0]
