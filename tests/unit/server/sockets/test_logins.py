"""Passwords are verified beside the loop, a few at once, each pair of password and hash once, and only for who still waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
import pytest_asyncio

from understudy.broker.config import parse
from understudy.broker.errors import AmqpError
from understudy.broker.security import LoginAttempt, User, UserDirectory
from understudy.broker.server.sockets.logins import MAX_AT_ONCE, MAX_WAITING, Logins

pytestmark = pytest.mark.asyncio

Outcome = User | AmqpError


class HeldDirectory(UserDirectory):
    """Verifies when it is let; counts how many do so at once."""

    def __init__(self) -> None:
        super().__init__(parse(""))
        self.go = threading.Event()
        self.running = self.most = self.verified = 0
        self._lock = threading.Lock()

    def verify(self, attempt: LoginAttempt) -> bool:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        assert threading.current_thread() is not threading.main_thread()
        self.go.wait(10)
        with self._lock:
            self.running -= 1
            self.verified += 1
        return attempt.password == "guest"


@pytest.fixture
def directory() -> Iterator[HeldDirectory]:
    directory = HeldDirectory()
    yield directory
    directory.go.set()


@pytest_asyncio.fixture
async def logins(directory: HeldDirectory) -> Logins:
    return Logins(directory)


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not done():  # noqa: ASYNC110  # what is waited for happens in threads that know no event
            await asyncio.sleep(0.001)


def try_to_log_in(logins: Logins, password: str, wanted: Callable[[], bool] = lambda: True) -> list[Outcome]:
    """Answers to an attempt to log in: empty until there is one."""
    answers: list[Outcome] = []
    logins.check("guest", password, True, answers.append, wanted)
    return answers


def text(outcome: Outcome) -> str:
    return outcome.name if isinstance(outcome, User) else str(outcome)


async def test_the_loop_goes_on_meanwhile(logins: Logins, directory: HeldDirectory) -> None:
    right, wrong = try_to_log_in(logins, "guest"), try_to_log_in(logins, "wrong")
    await until(lambda: directory.running == MAX_AT_ONCE)
    assert (right, wrong) == ([], [])
    directory.go.set()
    await until(lambda: bool(right and wrong))
    assert text(right[0]) == "guest"
    assert "wrong password" in text(wrong[0])


async def test_a_flood_is_verified_a_few_at_once(logins: Logins, directory: HeldDirectory) -> None:
    answers = [try_to_log_in(logins, f"wrong {number}") for number in range(50)]
    await until(lambda: directory.running == MAX_AT_ONCE)
    directory.go.set()
    await until(lambda: all(answers))
    assert (directory.most, directory.verified) == (MAX_AT_ONCE, 50)


async def test_one_application_that_reconnects_with_all_its_connections_costs_one_verification(
    logins: Logins, directory: HeldDirectory
) -> None:
    answers = [try_to_log_in(logins, "guest") for _ in range(2 * MAX_WAITING)]
    directory.go.set()
    await until(lambda: all(answers))
    assert {text(answer) for (answer,) in answers} == {"guest"}
    assert directory.verified == 1


async def test_what_is_known_is_answered_at_once(directory: HeldDirectory) -> None:
    users = UserDirectory(parse(""))
    logins = Logins(users)
    users.authenticate("guest", "guest", True)
    assert text(try_to_log_in(logins, "guest")[0]) == "guest"
    answers: list[Outcome] = []
    logins.check("guest", "guest", False, answers.append, lambda: True)
    assert "localhost" in text(answers[0])


async def test_nothing_is_verified_for_who_is_gone(logins: Logins, directory: HeldDirectory) -> None:
    here = True
    running = [try_to_log_in(logins, f"busy {number}") for number in range(MAX_AT_ONCE)]
    gone = [try_to_log_in(logins, f"gone {number}", lambda: here) for number in range(10)]
    here = False
    directory.go.set()
    await until(lambda: all(running))
    last = try_to_log_in(logins, "last")
    await until(lambda: bool(last))
    assert directory.verified == MAX_AT_ONCE + 1
    assert gone == [[]] * 10


async def test_too_many_that_wait_are_refused_and_may_try_again(logins: Logins, directory: HeldDirectory) -> None:
    here = True
    waiting = [try_to_log_in(logins, f"wrong {number}", lambda: here) for number in range(MAX_AT_ONCE + MAX_WAITING)]
    (answer,) = try_to_log_in(logins, "one more")
    assert isinstance(answer, AmqpError)
    assert (answer.reply_code, answer.retriable) == (506, True)
    assert not any(waiting)
    # Who only opens connections and leaves does not keep others out.
    here = False
    assert try_to_log_in(logins, "and another") == []


async def test_nobody_is_answered_after_the_end(logins: Logins, directory: HeldDirectory) -> None:
    answers = try_to_log_in(logins, "guest")
    waiting = [try_to_log_in(logins, f"wrong {number}") for number in range(10)]
    logins.close()
    directory.go.set()
    await until(lambda: not logins._verifying)
    assert directory.verified >= 1
    assert answers == []
    assert not any(waiting)
    assert try_to_log_in(logins, "guest") == []
