"""Logins: verifies passwords beside the event loop.

A scrypt takes some 50 ms of a processor and 16 MiB. On the loop a client with a wrong password, or many that connect anew at once,
would stop everybody for so long; here it stops nobody but itself. A flood of wrong passwords is bounded: :data:`MAX_AT_ONCE` are
verified at the same time, :data:`MAX_WAITING` different ones wait, in order, and further ones are turned away. What is known
(``security.VerificationCache``) waits for nobody, and all who show the same password wait for one verification: a thousand
connections of one application that reconnect cost one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import structlog

from understudy.broker.core.clients.login import Answer
from understudy.broker.errors import AccessRefusedError, AmqpError, ResourceErrorHard
from understudy.broker.security import LoginAttempt, User, UserDirectory
from understudy.broker.server.sockets.stranger_log import StrangerLog

MAX_AT_ONCE: Final = 2
MAX_WAITING: Final = 256

_Question = tuple[str, str | None]
"""A password and the hash to verify it against: the answer is the same whoever asks."""

_log: Final = structlog.get_logger()


class _Waiting(NamedTuple):
    attempt: LoginAttempt
    answer: Answer
    wanted: Callable[[], bool]


class Logins:
    """Implements ``core.clients.login.Authenticator``.

    Belongs to the loop it is made on; only ``UserDirectory.verify`` runs elsewhere.
    """

    def __init__(self, users: UserDirectory) -> None:
        self._users = users
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(MAX_AT_ONCE, "login")
        self._waiting: dict[_Question, list[_Waiting]] = {}
        self._verifying: dict[_Question, list[_Waiting]] = {}
        self._closed = False
        self._strangers = StrangerLog(_log)

    def check(
        self, name: str, password: str, peer_is_loopback: bool, answer: Answer, wanted: Callable[[], bool]
    ) -> None:
        if self._closed:
            return
        try:
            attempt = self._users.attempt(name, password, peer_is_loopback)
        except AccessRefusedError as refused:
            answer(self._refused(name, refused))
            return
        known = self._users.known(attempt)
        if known is not None:
            answer(self._outcome(attempt, known))
            return
        question = attempt.password, attempt.encoded
        waiting = _Waiting(attempt, answer, wanted)
        others = self._verifying.get(question) or self._waiting.get(question)
        if others is not None:
            others.append(waiting)
        elif self._has_room():
            self._waiting[question] = [waiting]
            self._begin()
        else:
            answer(ResourceErrorHard(f"{MAX_WAITING} passwords wait to be verified, try again"))

    def certified(self, name: str | AmqpError, peer_is_loopback: bool) -> User | AmqpError:
        """The user that a verified certificate names, or why there is none; ``name`` may be the reason."""
        try:
            if isinstance(name, AccessRefusedError):
                raise name
            return name if isinstance(name, AmqpError) else self._users.certified(name, peer_is_loopback)
        except AccessRefusedError as refused:
            return self._refused(name if isinstance(name, str) else "", refused)

    def renew(self, users: UserDirectory) -> UserDirectory:
        """Know these users from now on; returns those before."""
        before, self._users = self._users, users
        return before

    def vouched(self, name: str, peer_is_loopback: bool) -> User | AmqpError:
        """The user that another broker of the group has authenticated, or why there is none here."""
        try:
            return self._users.vouched(name, peer_is_loopback)
        except AccessRefusedError as refused:
            return self._refused(name, refused)

    def close(self) -> None:
        """Close: no login is answered any more."""
        self._closed = True
        self._waiting.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _has_room(self) -> bool:
        if len(self._waiting) < MAX_WAITING:
            return True
        self._waiting = {
            question: left
            for question, waiting in self._waiting.items()
            if (left := [each for each in waiting if each.wanted()])
        }
        return len(self._waiting) < MAX_WAITING

    def _begin(self) -> None:
        """Verify what has waited longest, while there are threads."""
        while self._waiting and len(self._verifying) < MAX_AT_ONCE:
            question = next(iter(self._waiting))
            waiting = [each for each in self._waiting.pop(question) if each.wanted()]
            if waiting:
                self._verifying[question] = waiting
                future = self._loop.run_in_executor(self._threads, self._users.verify, waiting[0].attempt)
                future.add_done_callback(lambda future, question=question: self._verified(question, future))  # type: ignore[misc]

    def _verified(self, question: _Question, future: asyncio.Future[bool]) -> None:
        waiting = self._verifying.pop(question)
        if self._closed or future.cancelled():
            return
        failure = future.exception()
        if failure is not None:
            _log.error("a password could not be verified", error=f"{type(failure).__name__}: {failure}")
        for attempt, answer, wanted in waiting:
            if not wanted():
                continue
            if failure is None:
                answer(self._outcome(attempt, future.result()))
            else:
                answer(ResourceErrorHard("the password could not be verified, try again"))
        self._begin()

    def _outcome(self, attempt: LoginAttempt, matches: bool) -> User | AmqpError:
        try:
            return self._users.conclude(attempt, matches)
        except AccessRefusedError as refused:
            return self._refused(attempt.name, refused)

    def _refused(self, name: str, refused: AccessRefusedError) -> AccessRefusedError:
        self._strangers.warning("login refused", user=name[:64], reason=str(refused))
        return refused
