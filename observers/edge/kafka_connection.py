"""Connections to Kafka: what the event feed and the outlet share, from the options to the words for what has failed.

`KafkaConfig` is the section ``[kafka]``. `kafka_config` reads it for a command, `client_arguments` turns it into arguments of
aiokafka's clients, `check_topic` looks at a topic before anything is sent, and `explained` says what an error means.

aiokafka tries some things again without end, and says why in its log only. `ClientLog` takes that log: nothing of it reaches
stderr, and the last line is the reason that `explained` adds where an error has none.

OffsetFetch is sent from here, and not by aiokafka's admin client: that client takes a group which may not be read, or whose
coordinator is still loading, for a group without offsets.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import attrs
from aiokafka import errors
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.metadata import MetadataRequest

from understudy.broker.config import ConfigError, KafkaConfig, given_by, load, structure
from understudy.broker.config.environment import overlay
from understudy.broker.errors import UnderstudyError
from understudy.observers.kafka_refused import KafkaRefusedError

__all__ = [
    "ClientLog",
    "KafkaRefusedError",
    "Purpose",
    "check_topic",
    "client_arguments",
    "committed",
    "explained",
    "kafka_config",
    "must_be_mended",
    "root_error",
]

REQUEST_MS: Final = 10_000
"""No answer within this time: the request has failed."""
SECTION: Final = "kafka"
MIN_IN_SYNC: Final = "min.insync.replicas"
_TOPIC_RESOURCE: Final = 2
COORDINATOR_S: Final = 0.1
COORDINATOR_PASSING: Final = (
    errors.GroupCoordinatorNotAvailableError,
    errors.GroupLoadInProgressError,
    errors.NodeNotReadyError,
    errors.NotCoordinatorForGroupError,
    errors.RequestTimedOutError,
)
MUST_BE_MENDED: Final = (
    errors.AuthenticationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.InvalidTopicError,
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.TopicAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
    errors.UnsupportedSaslMechanismError,
)
"""What no waiting mends."""

_WORDS: Final[tuple[tuple[tuple[type[BaseException], ...], str], ...]] = (
    ((UnderstudyError,), "{error}"),
    ((errors.TopicAuthorizationFailedError,), "{who} lacks an ACL on topic {topic!r}: Write, or (for offsets) Read"),
    (
        (errors.TransactionalIdAuthorizationFailed,),
        "{who} lacks the ACL Write on transactional id {transactional_id!r}",
    ),
    ((errors.GroupAuthorizationFailedError,), "{who} lacks the ACL Read on group {group!r}"),
    ((errors.ClusterAuthorizationFailedError,), "{who} lacks an ACL on the cluster: {error}"),
    (
        (errors.UnknownTopicOrPartitionError, errors.InvalidTopicError),
        "there is no topic {topic!r}; make it first",
    ),
    (
        (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError),
        "topic {topic!r} takes no message of this size; raise its max.message.bytes",
    ),
    ((errors.KafkaConnectionError,), "it cannot be reached{reason}"),
    ((TimeoutError,), "it does not answer in time{reason}"),
)
"""What errors mean: the first that fits."""


@attrs.frozen(kw_only=True)
class Purpose:
    """Place and purpose of a client of Kafka, as errors name them.

    Attributes:
        config: where it connects, and as whom.
        topic: that it writes to.
        transactional_id, group: of its transactions and offsets; "" if it has none.
    """

    config: KafkaConfig
    topic: str
    transactional_id: str = ""
    group: str = ""


def kafka_config(hosts: str, options: Path | None, variables: Mapping[str, str] = MappingProxyType({})) -> KafkaConfig:
    """The section ``[kafka]`` for a command.

    Args:
        hosts: ``host:port``, separated by commas; goes before the hosts of the file. "": those of the file.
        options: a configuration file, such as a broker's; None for none.
        variables: the environment; ``UNDERSTUDY__KAFKA__USER`` and the like go before the file.

    Raises:
        ConfigError: the file, a variable or the hosts cannot be used, or there are no hosts.
    """
    if options is not None:
        found = load(options, variables).kafka
    else:
        table: dict[str, Any] = {}
        overlay(table, [each for each in given_by(variables) if each.path[0] == SECTION])
        found = structure(table, file="the environment").kafka
    if hosts:
        given = structure({SECTION: {"hosts": [each.strip() for each in hosts.split(",")]}}, file="--kafka")
        found = attrs.evolve(found, hosts=given.kafka.hosts)
    if not found.hosts:
        raise ConfigError(
            file=str(options or "--kafka"), key="kafka.hosts", problem="missing, expected 'host:port,...'"
        )
    return found


def client_arguments(config: KafkaConfig) -> dict[str, Any]:
    """Arguments that each of aiokafka's clients takes. Certificates and password are read now.

    Raises:
        KafkaRefusedError: a file cannot be used; names the key and the file.
    """
    secure = config.tls is not None
    arguments: dict[str, Any] = {
        "bootstrap_servers": list(config.hosts),
        "client_id": config.client_id,
        "request_timeout_ms": REQUEST_MS,
        "security_protocol": ("SASL_" if config.sasl else "") + ("SSL" if secure else "PLAINTEXT"),
    }
    if secure:
        arguments["ssl_context"] = _ssl_context(config)
    if config.sasl:
        arguments["sasl_mechanism"] = config.sasl
        arguments["sasl_plain_username"] = config.user
        arguments["sasl_plain_password"] = _password(config)
    return arguments


def _ssl_context(config: KafkaConfig) -> ssl.SSLContext:
    tls = config.tls
    assert tls is not None
    try:
        context = ssl.create_default_context(cafile=tls.ca)  # loads no system CAs where a file is named
    except (OSError, ValueError) as error:
        raise KafkaRefusedError(f"kafka.tls.ca {tls.ca} cannot be used: {error}") from error
    if tls.cert is not None:
        try:
            context.load_cert_chain(tls.cert, tls.key)
        except (OSError, ValueError) as error:
            raise KafkaRefusedError(f"kafka.tls.cert {tls.cert} with kafka.tls.key {tls.key}: {error}") from error
    return context


def _password(config: KafkaConfig) -> str:
    path = config.password_file
    assert path is not None  # the configuration sees to it
    try:
        password = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise KafkaRefusedError(f"kafka.password_file {path} cannot be read: {error}") from error
    if not password:
        raise KafkaRefusedError(f"kafka.password_file {path} is empty")
    return password


# -- what Kafka says --------------------------------------------------------------------------------------------------


async def check_topic(purpose: Purpose) -> int:
    """See whether Kafka can be reached, and a topic be written to. The topic is not made.

    Returns:
        How many partitions it has.

    Raises:
        KafkaRefusedError: a file of the configuration cannot be used, or a partition has too few in-sync replicas.
        KafkaError: Kafka cannot be reached, the topic is not there, or an ACL is missing. `explained` has the words.
    """
    client = AIOKafkaClient(**client_arguments(purpose.config))
    try:
        await client.bootstrap()
        return await _partitions(client, purpose.topic)
    finally:
        await client.close()


async def _partitions(client: AIOKafkaClient, topic: str) -> int:
    answer = await _ask(client, MetadataRequest([topic], allow_auto_topic_creation=False))
    found = next(each for each in answer.to_object()["topics"] if each["topic"] == topic)
    _raise(found["error_code"], topic)
    needed = await _min_in_sync(client, topic)
    for each in found["partitions"]:
        if len(each["isr"]) < needed:
            number, has = each["partition"], len(each["isr"])
            raise KafkaRefusedError(
                f"topic {topic!r}, partition {number} has {has} in-sync replicas, and {MIN_IN_SYNC} is {needed}"
            )
    return len(found["partitions"])


async def _min_in_sync(client: AIOKafkaClient, topic: str) -> int:
    """The topic's setting; 1 if this user may not read it."""
    answer = await _ask(
        client, DescribeConfigsRequest([(_TOPIC_RESOURCE, topic, [MIN_IN_SYNC])], include_synonyms=False)
    )
    for code, _, _, _, entries in answer.resources:
        for name, value, *_ in entries if not code else ():
            if name == MIN_IN_SYNC:
                return int(value)
    return 1


async def committed(client: AIOKafkaClient, group: str, topic: str, partition: int = 0) -> tuple[int, str]:
    """Offset and metadata that a group has committed for one partition.

    Call this after a producer of the group's transactional id was started: then no transaction of an earlier one is open.
    A coordinator that is loading is asked again without end, so the caller sets a time limit.

    Returns:
        The offset, -1 if there is none; the metadata.

    Raises:
        KafkaError: such as GroupAuthorizationFailedError.
    """
    while True:
        try:
            node = await client.coordinator_lookup(CoordinationType.GROUP, group)
            request = OffsetFetchRequest(group, [(topic, [partition])])
            answer = await client.send(node, request, group=ConnectionGroup.COORDINATION)
            _raise(answer.error_code, group)
        except COORDINATOR_PASSING:
            await client.force_metadata_update()
            await asyncio.sleep(COORDINATOR_S)
            continue
        for _, partitions in answer.topics:
            for _, offset, metadata, code in partitions:
                _raise(code, topic)
                return int(offset), metadata or ""
        return -1, ""


async def _ask(client: AIOKafkaClient, request: Any) -> Any:
    node = client.get_random_node()
    if node is None:
        raise errors.KafkaConnectionError("no broker is known")
    return await client.send(node, request)


def _raise(code: int, about: str) -> None:
    if code:
        raise errors.for_code(code)(about)


class ClientLog(logging.Handler):
    """Takes what aiokafka logs; keeps the last warning.

    Attributes:
        last: its text; "" if there was none.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        logger = logging.getLogger("aiokafka")
        logger.propagate = False
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()

    def close(self) -> None:
        """Take no more."""
        logger = logging.getLogger("aiokafka")
        logger.removeHandler(self)
        logger.propagate = True
        super().close()


def explained(error: BaseException, purpose: Purpose, last: str = "") -> str:
    """The failure, explained to an operator.

    Args:
        error: of aiokafka, or TimeoutError.
        purpose: of the client.
        last: what aiokafka logged last.
    """
    error, config = root_error(error), purpose.config
    who = f"user {config.user!r}" if config.user else "this client"
    reason = f" ({last})" if last else ""
    words = next((words for types, words in _WORDS if isinstance(error, types)), "{error}{reason}")
    said = words.format(
        who=who,
        topic=purpose.topic,
        transactional_id=purpose.transactional_id,
        group=purpose.group,
        error=error,
        reason=reason,
    )
    return f"Kafka at {','.join(config.hosts)}: {said}"


def must_be_mended(error: BaseException) -> bool:
    """True if waiting is of no use."""
    return isinstance(root_error(error), (UnderstudyError, *MUST_BE_MENDED))


def root_error(error: BaseException) -> BaseException:
    """The error that aiokafka's sender has met: the sender raises a plain KafkaError from it."""
    while type(error) is errors.KafkaError and error.__cause__ is not None:
        error = error.__cause__
    return error
