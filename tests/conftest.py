"""For every test: no time limit of Hypothesis's own, since a busy machine makes examples slow; and one Kafka server.

What pytest has collected is set aside from the cycle collector, which would look at all of it again and again: a sixth of the
time of the unit tests.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from scripts.service_tools.kafka_keeper import SharedKafka, shared_kafka

settings.register_profile("understudy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("understudy")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedKafka]:
    """One Kafka server for all processes of a run. Each test uses topics and groups of its own name, and stops nothing."""
    run = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # a folder below that of the run
        run = run.parent
    with shared_kafka(run / "kafka") as server:
        yield server


@pytest.fixture(scope="session")
def kafka(kafka_server: SharedKafka) -> str:
    """Its bootstrap server. Topics are made with ``scripts.service_tools.kafka_admin.create_topic``."""
    return kafka_server.hosts
