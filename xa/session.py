"""Session: one thread of control's link to the state server and its resource managers. It carries out steps and decides nothing.

A session is used for one transaction at a time. `on_step` is called with a name before and after each step: a trace for the
curious, and the place where a test ends the process.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from understudy.xa.core.codes import Answer
from understudy.xa.core.errors import (
    RecoveryBusyError,
    StateServerError,
    StateServerLostError,
    WrongProfileError,
    WrongResourceManagerError,
)
from understudy.xa.core.manager.recovery import recover
from understudy.xa.core.manager.steps import Step, Steps, Tell, Verb, Wait
from understudy.xa.core.profiles.profile import Profile
from understudy.xa.core.register.bounds import other_resource
from understudy.xa.core.register.entry import Entry
from understudy.xa.core.register.wire import Claim, Claimed, Nothing, Refused, Release
from understudy.xa.core.xid import resource_of
from understudy.xa.resource_managers.port import ResourceManager
from understudy.xa.sockets.link import TIMEOUT_S, StateLink

GIVE_WAYS: Final = 10
"""Of about a second each."""
OnStep = Callable[[str], None]
_T = TypeVar("_T")


def _no_step(_label: str) -> None:
    pass


class Session:
    """Opens every resource manager and the link, so that a program that cannot reach one fails before a transaction begins.

    Args:
        resources: of the profile, by name, not open yet.

    Raises:
        ResourceManagerError: one cannot be opened, or cannot prepare a branch though the profile has several.
        StateServerError, WrongProfileError: as `StateLink`.
    """

    def __init__(
        self,
        profile: Profile,
        job: str,
        resources: Mapping[str, ResourceManager],
        *,
        on_step: OnStep | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.job = job
        self.resources = resources
        self._on_step = on_step or _no_step
        try:
            for resource in resources.values():  # the preflight
                resource.open()
            if len(resources) > 1:
                self.check_two_phases(f"profile {profile.name!r} has {len(resources)} resource managers")
            self.link = StateLink(
                profile.state_server,
                job=job,
                profile=profile.name,
                fingerprint=profile.fingerprint,
                timeout_s=timeout_s,
                login=profile.login,
            )
        except BaseException:
            for resource in resources.values():
                resource.close()
            raise

    def check_two_phases(self, why: str) -> None:
        """See that all resource managers can prepare a branch.

        Raises:
            ResourceManagerError: one cannot.
        """
        for resource in self.resources.values():
            resource.check_two_phases(why)

    def after_fork(self) -> None:
        """In a child: let go of all connections, which are the parent's, without a word to the servers."""
        self.link.close()
        for resource in self.resources.values():
            with contextlib.suppress(Exception):  # the others let go all the same
                resource.after_fork()

    def close(self) -> None:
        self.link.close()
        for resource in self.resources.values():
            resource.close()

    def give_back(self) -> None:
        """Give back what a transaction that was rolled back has taken.

        Without this a message stays with the idle session, where no program can take it.
        """
        for resource in self.resources.values():
            resource.give_back()

    def run(self, steps: Steps[_T]) -> _T:
        """Carry out the steps of a generator, and return or raise what it does."""
        try:
            step = next(steps)
            while True:
                self._on_step(f"{step.label}.before")
                try:
                    answer = self._carried_out(step)
                except StateServerLostError as error:
                    step = steps.throw(error)
                else:
                    self._on_step(f"{step.label}.after")
                    step = steps.send(answer)
        except StopIteration as end:
            result: _T = end.value
            return result

    def _carried_out(self, step: Step) -> Any:
        match step:
            case Verb():
                return self.resources[resource_of(step.resource)].call(step)
            case Tell():
                return self.link.ask(step.request)
            case Wait(ms):
                time.sleep(ms / 1000)
                return None

    # -- recovery -----------------------------------------------------------------------------------------------------

    def recover(self, *, early: bool = False) -> list[tuple[Entry, dict[str, Answer]]]:
        """Recover what waits for the job, one transaction after the other, until nothing is left.

        One that is busy lets the others go first. When nothing else has come on for GIVE_WAYS times, it counts as failed.

        Args:
            early: also what is not due, since its last recovery failed a short time ago.

        Raises:
            RecoveryFailedError: one could not be recovered now.
            WrongProfileError: one was begun with other resource managers. `WrongResourceManagerError`: or on other servers.
            StateServerError: the server refuses, or is lost.
        """
        done = []
        gave_way = 0
        while (entry := self._claimed(early=early)) is not None:
            self._check_place(entry)
            try:
                done.append((entry, self.run(recover(entry, gives_way=gave_way < GIVE_WAYS))))
                gave_way = 0
            except RecoveryBusyError:
                gave_way += 1
        return done

    @property
    def identities(self) -> dict[str, str]:
        """Which servers and databases the resource managers are, by name; "" of one that does not tell."""
        return {name: resource.identity for name, resource in self.resources.items()}

    def _check_place(self, entry: Entry) -> None:
        """Let go of a transaction that has its branches elsewhere."""
        if wrong := other_resource(entry, self.identities):
            self.link.ask(Release(entry.gid, f"{wrong} ({socket.gethostname()})"))
            raise WrongResourceManagerError(f"{wrong}: nothing was done")

    def _claimed(self, *, early: bool) -> Entry | None:
        self._on_step("tell.claim.before")
        reply = self.link.ask(Claim(early))
        self._on_step("tell.claim.after")
        match reply:
            case Nothing():
                return None
            case Claimed(entry):
                return entry
            case Refused("wrong_profile", text):
                raise WrongProfileError(text)
            case _:
                raise StateServerError(f"the state server at {self.link.address} gives nothing to recover: {reply}")
