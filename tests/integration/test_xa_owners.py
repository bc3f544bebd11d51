"""The owner of a transaction: every verb of another process, thread or task is refused, and every way out of a block ends it.

The state server is real, the resource managers are scripted: they keep the verbs that they were called with.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.integration.broker_process import wait_until
from tests.integration.xa_servers import ServerProcess, ended
from understudy.xa import (
    AsyncTransactionManager,
    NotOwnerError,
    Outcome,
    ProtocolError,
    ResourceManager,
    TransactionManager,
)
from understudy.xa.core.profiles.profile import Profile, ResourceConfig, profile_of
from understudy.xa.resource_managers.scripted import ScriptedResource

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@attrs.define
class Scene:
    """A state server, a profile of two scripted resource managers, and every one of them that was made."""

    server: ServerProcess
    profile: Profile
    made: list[ScriptedResource] = attrs.field(factory=list)

    def make(self, config: ResourceConfig) -> ResourceManager:
        self.made.append(ScriptedResource(config.name, config.options))
        return self.made[-1]

    def manager(self, on_step: Callable[[str], None] | None = None) -> TransactionManager:
        return TransactionManager(self.profile, job="owners", make_resource=self.make, on_step=on_step)

    def asyncio_manager(self) -> AsyncTransactionManager:
        return AsyncTransactionManager(self.profile, job="owners", make_resource=self.make)

    def verbs(self) -> list[str]:
        """Of the second phase, that all were called with."""
        calls = [(call.name.value, call.resource) for one in self.made for call in one.calls]
        return sorted(f"{verb} {name}" for verb, name in calls if verb in ("commit", "rollback"))

    def nothing_is_left(self) -> bool:
        return not self.server.entries()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("owners")
    server = ServerProcess(folder, "state", "--data", str(folder / "state"))
    with ended(server):
        server.start()
        yield server
        assert server.stop() == 0


@pytest.fixture
def scene(server: ServerProcess) -> Iterator[Scene]:
    text = (
        f'[[state_servers]]\nid = "main"\naddress = "{server.address}"\n'
        '[[profiles]]\nname = "shop"\nstate_server = "main"\n'
        '[[profiles.resource_managers]]\nname = "bank"\nkind = "scripted"\n'
        '[[profiles.resource_managers]]\nname = "queues"\nkind = "scripted"\n'
    )
    scene = Scene(server, profile_of(text, "shop", "x"))
    yield scene
    wait_until("nothing is left", scene.nothing_is_left, 5)


def in_thread(call: Callable[[], Any]) -> Any:
    """Result, or error, of a call in a thread of its own."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001  # it is looked at
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return found[0]


def test_each_verb_of_another_thread_is_refused(scene: Scene) -> None:
    with contextlib.closing(scene.manager()) as manager:
        tx = manager.begin()
        for verb in (tx.commit, tx.rollback, tx.suspend, tx.ticket, tx.vote, tx.finish):
            assert isinstance(in_thread(verb), NotOwnerError), verb
        for of_bank in (tx.resource, tx.leave):
            assert isinstance(in_thread(functools.partial(of_bank, "bank")), NotOwnerError), of_bank
        assert tx.active
        assert tx.commit() is Outcome.COMMITTED
    assert scene.verbs() == ["commit bank", "commit queues"]


def test_a_rollback_by_another_thread_between_decision_and_second_phase_is_refused(scene: Scene) -> None:
    told: list[Any] = []

    def on_step(label: str) -> None:
        if label == "tell.decide.after":
            told.append(in_thread(tx.rollback))

    with contextlib.closing(scene.manager(on_step)) as manager:
        tx = manager.begin()
        assert tx.commit() is Outcome.COMMITTED
    assert [type(one) for one in told] == [NotOwnerError]
    assert scene.verbs() == ["commit bank", "commit queues"]


def test_a_verb_that_another_one_calls_midway_is_refused(scene: Scene) -> None:
    """By the thread itself: from a signal handler, or a hook."""
    told: list[BaseException] = []

    def on_step(label: str) -> None:
        if label == "prepare.queues.after":
            with pytest.raises(ProtocolError) as refused:
                tx.rollback()
            told.append(refused.value)

    with contextlib.closing(scene.manager(on_step)) as manager:
        tx = manager.begin()
        assert tx.commit() is Outcome.COMMITTED
    assert "is under way" in str(told[0])
    assert scene.verbs() == ["commit bank", "commit queues"]


def test_a_thread_that_ends_with_its_transaction_leaves_nothing(scene: Scene) -> None:
    """Its ident is given again: a later thread has no transaction."""
    with contextlib.closing(scene.manager()) as manager:
        idents = set()
        for _ in range(5):
            left = in_thread(lambda: (threading.get_ident(), manager.begin()))
            assert not isinstance(left, Exception), left
            idents.add(left[0])
            wait_until("it is rolled back", functools.partial(getattr, left[1], "over"), 5)
        assert len(idents) < 5, "no ident was given again: the test shows nothing"
        assert manager.current is None
    assert scene.verbs() == ["rollback bank"] * 5 + ["rollback queues"] * 5


def test_a_task_that_ends_with_its_transaction_leaves_nothing(scene: Scene) -> None:
    with contextlib.closing(scene.manager()) as manager:

        async def begins() -> Any:
            return manager.begin()

        async def work() -> None:
            left = await asyncio.create_task(begins())
            await asyncio.sleep(0)
            assert left.over

        asyncio.run(work())
    assert scene.verbs() == ["rollback bank", "rollback queues"]


def test_a_block_that_another_thread_leaves_is_rolled_back(scene: Scene) -> None:
    with contextlib.closing(scene.manager()) as manager:
        block = contextlib.ExitStack()
        tx = block.enter_context(manager.begin())
        assert isinstance(in_thread(block.close), NotOwnerError)
        assert tx.over
        assert manager.current is None
    assert scene.verbs() == ["rollback bank", "rollback queues"]


def test_of_two_threads_that_resume_one_has_the_transaction(scene: Scene) -> None:
    with contextlib.closing(scene.manager()) as manager:
        tx = manager.begin()
        tx.suspend()
        tx.resume()
        assert isinstance(in_thread(tx.resume), ProtocolError)
        assert manager.current is tx
        tx.suspend()

        def resumes() -> Outcome:
            tx.resume()
            return tx.commit()

        assert in_thread(resumes) is Outcome.COMMITTED
        with pytest.raises(NotOwnerError, match="is that of thread"):
            tx.rollback()


def test_what_a_transaction_has_left_is_recovered_without_a_further_begin(scene: Scene) -> None:
    """The resource manager is down at the commit, and again at the first recovery."""
    text = {"bank": "commit=RMFAIL commit=RMFAIL", "queues": ""}
    scripts = iter([text, {"bank": "commit=RMFAIL", "queues": ""}, {"bank": "", "queues": ""}])
    script: dict[str, str] = {}

    def make(config: ResourceConfig) -> ResourceManager:
        if config.name == "bank":
            script.update(next(scripts))
        scene.made.append(ScriptedResource(config.name, {"script": script[config.name]}))
        return scene.made[-1]

    with contextlib.closing(TransactionManager(scene.profile, job="owners", make_resource=make)) as manager:
        assert manager.begin().commit() is Outcome.COMMIT_PENDING
        wait_until("it is recovered", scene.nothing_is_left, 30)


def test_a_child_process_has_connections_of_its_own_and_no_transaction(scene: Scene, tmp_path: Path) -> None:
    with contextlib.closing(scene.manager()) as manager:
        with manager.begin(), contextlib.suppress(ProtocolError):
            manager.begin()
        tx = manager.begin()
        told = tmp_path / "told"
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                for verb in (tx.commit, tx.rollback, tx.suspend, tx.ticket):
                    with pytest.raises(NotOwnerError, match="is that of process"):
                        verb()
                assert manager.current is None
                with manager.begin() as own:
                    pass
                told.write_text(f"{own.outcome}")
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert told.read_text() == "Outcome.COMMITTED"
        assert tx.commit() is Outcome.COMMITTED


def test_a_block_left_behind_a_call_of_another_task_and_cancelled_is_rolled_back(scene: Scene) -> None:
    async def work() -> None:
        async with scene.asyncio_manager() as manager:
            release, runs = threading.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()
            found: list[Any] = []

            def blocks() -> None:
                loop.call_soon_threadsafe(runs.set)
                assert release.wait(30)

            async def block() -> None:
                async with manager.begin() as tx:
                    found.append(tx)
                    found.append(asyncio.create_task(tx.run(blocks)))
                    await runs.wait()

            task = asyncio.create_task(block())
            await runs.wait()
            await asyncio.sleep(0.05)  # the end of the block waits behind the call
            task.cancel()
            await asyncio.sleep(0.05)
            task.cancel()
            release.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            await found[1]
            assert found[0].over

    asyncio.run(work())
    assert scene.verbs() == ["rollback bank", "rollback queues"]


def test_verbs_of_another_task_and_calls_behind_the_end_are_refused(scene: Scene) -> None:
    async def work() -> None:
        async with scene.asyncio_manager() as manager:
            async with manager.begin() as tx:
                for verb in (tx.commit, tx.rollback, tx.suspend, tx.ticket):
                    with pytest.raises(NotOwnerError):
                        await asyncio.create_task(verb())
                with pytest.raises(NotOwnerError):
                    await asyncio.create_task(tx.resource("bank"))
                assert await asyncio.gather(*(tx.run(int, text) for text in "123")) == [1, 2, 3]
            with pytest.raises(ProtocolError, match="not active"):
                await tx.run(int, "4")
            assert tx.outcome is Outcome.COMMITTED

    asyncio.run(work())
    assert scene.verbs() == ["commit bank", "commit queues"]
