"""The table of suites: which sources, which environment, which tests, and how each learns the address of the broker."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import attrs

from scripts.compatibility_tools.errors import CompatibilityError

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@attrs.frozen(kw_only=True)
class Suite:
    """One suite of a client.

    Attributes:
        name: of the package, and of the suite on the command line.
        version: that is run by default.
        sha256: of the source package on PyPI; "": its tests are in no source package, so the user names a tree.
        tests: paths in the tree, each of which must be there.
        runner: of the tests.
        arguments: further words for the runner; values as below.
        quick: words that choose the part for each run of our own tests; empty: all of it.
        excluded: tests, as the runner names them, that are run on neither broker; each with the reason.
        environment: variables; `{host}`, `{port}`, `{tls_port}`, `{control}` and `{node}` are replaced.
        rewrites: for a suite that takes no address: pattern of files to the text that is replaced there, and by what; values as
            above.
        certificates: folder of the tree that gets certificates; "": none.
        limit_s: seconds for all of the suite.
        origin: where a tree comes from, for people.
    """

    name: str
    version: str
    sha256: str = ""
    tests: tuple[str, ...]
    runner: Literal["pytest", "maven", "cargo"] = "pytest"
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    excluded: Mapping[str, str] = _NONE
    environment: Mapping[str, str] = _NONE
    rewrites: Mapping[str, tuple[str, str]] = MappingProxyType({})
    certificates: str = ""
    limit_s: float = 1_800.0
    origin: str

    @property
    def needs_source(self) -> bool:
        """True if no registry has the tests, so that the user must name a tree."""
        return not self.sha256


_RABBITMQ_VARIABLES: Final = MappingProxyType(
    {"RABBITMQ_HOST": "{host}", "RABBITMQ_5672_TCP": "{port}", "RABBITMQ_5671_TCP": "{tls_port}"}
)

_CONTAINER: Final = "stops and starts a RabbitMQ of its own in Docker"

SUITES: Final = (
    Suite(
        name="aio-pika",
        version="10.2.1",
        sha256="e4f77afd9179a3cca5a904c3b0a1190256a36d9f90650db908b1b2245eb27487",
        tests=("tests",),
        # Its fixtures start RabbitMQ in Docker; the plugin puts the broker under test in that place.
        arguments=("-p", "no:asyncio", "-p", "aio_pika_container"),
        # All of it waits for a quarter of an hour, for most of which it tests the client alone.
        quick=(
            "-k",
            "(test_amqp.py and TestCaseAmqp and connect_robust and not Confirms) or test_robust_binding_identity.py",
        ),
        excluded={
            "tests/test_robust_recovery.py::test_restore_topology_and_consumers[stop_app]": _CONTAINER,
            "tests/test_robust_recovery.py::test_restore_topology_and_consumers[kill]": _CONTAINER,
            "tests/test_robust_recovery.py::test_pool_consumer_survives_broker_restart": _CONTAINER,
        },
        environment={
            "COMPATIBILITY_HOST": "{host}",
            "COMPATIBILITY_PORT": "{port}",
            "COMPATIBILITY_TLS_PORT": "{tls_port}",
        },
        origin="https://github.com/mosquito/aio-pika",
    ),
    Suite(
        name="kombu",
        version="5.7.0",
        sha256="31e62fdfd2381caa3422f8e02b84a491d9a2180ddda74507b57f4cb1e1c2c2c9",
        tests=("t/integration/test_py_amqp.py",),
        quick=("-k", "not Failover and not failed and not TimeToLive"),
        environment=_RABBITMQ_VARIABLES,
        origin="https://github.com/celery/kombu",
    ),
    Suite(
        name="amqp",
        version="5.4.2",
        sha256="9362660c4a31150cf18e78cae2ce8aa1e929fc6c6739e69f6dd5dbea9c3edc82",
        tests=("t/integration",),
        environment=_RABBITMQ_VARIABLES,
        certificates="t/certs",
        origin="https://github.com/celery/py-amqp",
    ),
    Suite(
        name="pika",
        version="1.4.0",
        tests=("tests/acceptance",),
        arguments=("-o", "python_files=*_test.py *_tests.py"),
        rewrites={"tests/**/*.py": ("5672", "{port}")},
        origin="https://github.com/pika/pika",
    ),
    Suite(
        name="java",
        version="6.0.0",
        tests=("src/test/java/com/rabbitmq/client/test/functional/FunctionalTestSuite.java", "deps/rabbitmq_codegen"),
        runner="maven",
        arguments=(
            "-Dit.test=FunctionalTestSuite",
            "-Drabbitmqctl.bin={control}",
            "-Dtest-broker.A.nodename={node}",
        ),
        # The client's default port is generated from the specification.
        rewrites={
            "src/test/java/com/rabbitmq/client/test/functional/PerMessageTTL.java": (
                "@Test public void restarting",
                "public void restarting",
            ),
            "src/test/java/**/*.java": ("5672", "{port}"),
            "deps/rabbitmq_codegen/amqp-rabbitmq-0.9.1.json": ('"port": 5672', '"port": {port}'),
        },
        excluded={"PerMessageTTL::restartingExpiry": "stops its broker by `rabbitmqctl`; what it leaves fails others"},
        origin="https://github.com/rabbitmq/rabbitmq-java-client, after `make deps`",
    ),
    Suite(
        name="lapin",
        version="4.7.4",
        tests=("tests/connection.rs", "tests/publisher_confirms.rs"),
        runner="cargo",
        # The other provider of rustls is compiled for minutes.
        arguments=("--no-default-features", "--features", "default-runtime,rustls,rustls--ring", "--tests"),
        # Beside the copies of both sides: the libraries are compiled once.
        environment={"AMQP_ADDR": "amqp://{host}:{port}/%2f", "CARGO_TARGET_DIR": "../cargo-target"},
        origin="https://github.com/amqp-rs/lapin",
    ),
)


def find_suite(name: str) -> Suite:
    """The suite of this name.

    Raises:
        CompatibilityError: there is none; the message names the nearest.
    """
    for suite in SUITES:
        if suite.name == name:
            return suite
    names = [suite.name for suite in SUITES]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
    raise CompatibilityError(f"no suite is called {name!r}; {hint}")
