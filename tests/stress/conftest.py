"""Around every stress test: what clients with broken connections leave to the garbage collector is collected here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.broker_process import leaks_of_clients


@pytest.fixture(autouse=True)
def broken_connections() -> Iterator[None]:
    with leaks_of_clients():
        yield
