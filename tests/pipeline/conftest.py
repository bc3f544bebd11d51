"""One Spark session for all tests of a process: starting it takes seconds, and a process can have one.

The connectors are there from the start: Java takes no jars later.
"""

from __future__ import annotations

import gc
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from understudy.pipeline.commands.stream import DELTA_SETTINGS
from understudy.pipeline.spark.connector_jars import DELTA, KAFKA
from understudy.pipeline.spark.session import SessionSettings, open_session, small

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Local, with few partitions: feeds of tests are small."""
    work = tmp_path_factory.mktemp("spark")
    settings = SessionSettings(
        name="tests",
        master="local[2]",
        memory="2g",
        shuffle_partitions=2,
        work=work,
        jars=[KAFKA, DELTA],
        more=DELTA_SETTINGS,
    )
    session = open_session(small(settings))
    yield session
    session.stop()
    with warnings.catch_warnings():  # what py4j has left open must not come out in a test of another room
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def handlers() -> Iterator[None]:
    """A command in this process handles signals in its own way: the handlers from before come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """py4j leaves the sockets to Spark's Java process to the garbage collector."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            item.add_marker(
                pytest.mark.timeout(1200)
            )  # the first audit of a process takes seconds of a core, or minutes of a busy one
