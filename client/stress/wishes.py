"""Wishes: what a run was asked for, read from the options and checked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import attrs

from understudy.client.runs.audited import DETAIL
from understudy.client.stress.faults.conductor import Goal
from understudy.client.stress.faults.nemeses import NEMESES, possible
from understudy.client.stress.libraries.by_name import LIBRARIES
from understudy.client.stress.places.compose import ComposePlace, compose_means
from understudy.client.stress.places.local import LocalPlace, LocalWishes, local_means
from understudy.client.stress.places.local_store import FILE, SERVICES, ZOOKEEPER
from understudy.client.stress.places.place import Place
from understudy.client.stress.workloads.by_name import WORKLOADS

ALL: Final = "all"
LOCAL: Final = "local"
COMPOSE: Final = "compose"
STORES: Final = (FILE, ZOOKEEPER)
MUTATED_BROKER: Final = "tests.stress.mutated_broker"


class WishError(Exception):
    """An option has a value that it cannot have; the message names both, and what is known."""


@attrs.frozen(kw_only=True)
class Wishes:
    """The options of a stress run.

    Attributes:
        rate: pieces of work a second, of all clients together.
        nemeses: names, of those that the place can carry out.
        libraries: names; clients take them in turn.
        mutation: a known bug that the brokers have; "" for the product as it is.
        audit: whether the run ends with the audit of the brokers' feeds.
    """

    place: str
    store: str
    goal: Goal
    seed: int
    workload: str
    clients: int
    rate: float
    nemeses: Sequence[str]
    libraries: Sequence[str]
    mutation: str = ""
    audit: bool = False

    def library_of(self, number: int) -> str:
        """The library of the client of that number."""
        return self.libraries[number % len(self.libraries)]

    def make_place(self, folder: Path) -> Place:
        """Where the brokers will live."""
        if self.place == COMPOSE:
            return ComposePlace(folder)
        means = {NEMESES[name].needs for name in self.nemeses}
        feed = DETAIL if self.audit else ""
        server = _mutated(self.mutation)
        return LocalPlace(folder, LocalWishes(store=self.store, means=means, server=server, feed=feed))

    def setting(self) -> Mapping[str, Any]:
        """The options, as the report states them."""
        return {
            "place": self.place,
            "store": self.store,
            "seed": self.seed,
            "workload": self.workload,
            "nemeses": list(self.nemeses),
            "libraries": list(self.libraries),
            "clients": self.clients,
            "rate": self.rate,
            **({"mutation": self.mutation} if self.mutation else {}),
        }


def asked(
    *, place: str, seconds: float | None, kills: int | None, seed: int, nemesis: str, workload: str, clients: int,
    rate: float, libraries: str, store: str, mutation: str, audit: bool = False,
) -> Wishes:  # fmt: skip
    """Read the options.

    Raises:
        WishError: one of them cannot be.
    """
    _known("--workload", workload, WORKLOADS)
    store = store or (ZOOKEEPER if place == COMPOSE or SERVICES.exists() else FILE)
    _known("--store", store, STORES)
    if place == COMPOSE and (store, mutation) != (ZOOKEEPER, ""):
        raise WishError("--compose: its store is zookeeper, and its brokers are those of the image")
    if place == COMPOSE and audit:
        raise WishError("--audit: the feeds of containers are not on this host; give it with --local")
    if audit and find_spec("pyspark") is None:
        raise WishError("--audit: PySpark is missing: pip install 'understudy[pipeline]'")
    able = possible(compose_means() if place == COMPOSE else local_means(store))
    if not able:
        raise WishError("--compose: docker and docker-compose are not on PATH")
    names = able if nemesis == ALL else _names("--nemesis", nemesis, NEMESES)
    if impossible := [name for name in names if name not in able]:
        raise WishError(f"--nemesis: {', '.join(impossible)} cannot be done here, with --{place} --store {store}")
    if kills is not None and seconds is None and not any(NEMESES[name].kills for name in names):
        killing = ", ".join(name for name in able if NEMESES[name].kills)
        raise WishError(
            f"--kills {kills}: {', '.join(names)} kills no primary, so the run would not end: add one of {killing} to "
            "--nemesis, or give --minutes"
        )
    return Wishes(
        place=place,
        store=store,
        goal=Goal(seconds=seconds, kills=kills),
        seed=seed,
        workload=workload,
        clients=clients,
        rate=rate,
        nemeses=names,
        libraries=_names("--libraries", libraries, LIBRARIES),
        mutation=_mutation(mutation),
        audit=audit,
    )


def _mutated(mutation: str) -> Sequence[str]:
    """The command of a broker with that bug; () for the ordinary one."""
    return (sys.executable, "-m", MUTATED_BROKER, mutation) if mutation else ()


def _mutation(name: str) -> str:
    """A name that the tests know, or ""."""
    if name:
        command = [sys.executable, "-m", MUTATED_BROKER, "--list"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own command line
        if listed.returncode:
            raise WishError("--mutation: the tests, which hold the known bugs, are not in the working directory")
        _known("--mutation", name, listed.stdout.split())
    return name


def _known(option: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise WishError(f"{option} {name}: there is none of that name; there are {', '.join(known)}")


def _names(option: str, text: str, known: Collection[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise WishError(f"{option}: there is no {', '.join(unknown)}; there are {', '.join(known)}")
    if not names:
        raise WishError(f"{option}: name at least one of {', '.join(known)}")
    return names
