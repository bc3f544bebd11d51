"""The sections of the configuration: each key with its default and its range.

The place that uses a value says what it does when it is in force; docs/configuration.md tells users.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from attrs import Factory, field, frozen

from understudy.broker.config.host_port import CHROOT, HostPort
from understudy.broker.config.policy_readers import Definition, PolicyTables
from understudy.broker.config.readers import (
    DAY_S,
    GIB,
    KIB,
    MIB,
    FilePath,
    Flag,
    Host,
    Named,
    Number,
    PasswordHash,
    Pattern,
    Table,
    Tables,
    Text,
    Texts,
    milliseconds_of,
    seconds,
    size,
)
from understudy.broker.security import Permissions

GUEST_PASSWORD_HASH: Final = "$scrypt$ln=14,r=8,p=1$dW5kZXJzdHVkeS5ndWVzdA$2tGmIQmCqbpxTFHwyO4tLquCpR/y7oJ72swRNGLgPbo"  # noqa: S105
"""Of `guest`. Its salt is fixed, for the password is known to all; `security` lets guest in from loopback only."""

_NAME: Final = r"[^\x00-\x1f]{1,127}"  # NUL parts the fields of SASL PLAIN
_USER: Final = r"[^\x00-\x1f]{1,255}"  # a distinguished name may be long
_TOPIC: Final = r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}"  # Kafka's rule
_TOPIC_EXPECTED: Final = "a Kafka topic: 1 to 249 letters, digits, '.', '_' and '-'"
_Host = Annotated[str, Host()]
_Port = Annotated[int, Number(0, 65_535)]  # 0: any free one
ID: Final = Text(
    "a name of 1 to 64 letters, digits, '.', '_' and '-', no sign first", r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
)
_Id = Annotated[str, ID]


@frozen(kw_only=True)
class BrokerConfig:
    """[broker]: who this broker is. `id` and `group` are written into the data directory, which belongs to them from then on."""

    id: _Id = "b1"
    group: _Id = "understudy"
    data: Annotated[Path, FilePath("the data directory")] = Path("data")
    vhosts: Annotated[tuple[str, ...], Texts("a list of different vhost names", Text("a vhost name", _NAME))] = ("/",)


@frozen(kw_only=True)
class TlsConfig:
    """A certificate chain and its key as PEM files; `ca` also demands a certificate, signed by it, of the peer."""

    cert: Annotated[Path, FilePath("the path of a PEM certificate chain")]
    key: Annotated[Path, FilePath("the path of a PEM private key")]
    ca: Annotated[Path | None, FilePath("the path of PEM certificates")] = None


@frozen(kw_only=True)
class ClientTlsConfig(TlsConfig):
    """[amqp.tls]: TLS for clients, on the port of [amqp], or on one of its own beside that.

    Attributes:
        port: of its own; then the port of [amqp] speaks plain AMQP. None: that port speaks TLS.
        host: where that port is listened on; None: where [amqp] is.
        user_from: the name in a client's certificate that SASL EXTERNAL takes for the user's; none: EXTERNAL is not offered.
        san_type, san_index: which of the subject alternative names.
    """

    host: Annotated[str | None, Host()] = None
    port: Annotated[int | None, Number(0, 65_535)] = None
    user_from: Annotated[
        Literal["distinguished_name", "common_name", "subject_alternative_name"] | None,
        Text(
            "'distinguished_name', 'common_name' or 'subject_alternative_name'",
            "distinguished_name|common_name|subject_alternative_name",
        ),
    ] = None
    san_type: Annotated[
        Literal["dns", "email", "ip", "uri"], Text("'dns', 'email', 'ip' or 'uri'", "dns|email|ip|uri")
    ] = "dns"
    san_index: Annotated[int, Number(0, 99)] = 0


@frozen(kw_only=True)
class CarryConfig:
    """[amqp.carry]: clients that reach a broker which does not lead, and are carried to the leader.

    Attributes:
        connections: that one broker carries, or has wait, at once.
        wait_s: that a client waits while no leader is known; then it is refused.
    """

    connections: Annotated[int, Number(1, 1_000_000)] = 10_000
    wait_s: Annotated[float, seconds(0, 3_600)] = 10.0


@frozen(kw_only=True)
class AmqpConfig:
    """[amqp]: where clients connect and what is proposed to them; heartbeat 0 is none.

    With `tls` the port speaks TLS only, unless `tls` has a port of its own.

    `on_backup`: a client that reaches a broker which does not lead is carried to the leader, or refused (320).
    `mandatory_in_tx`: when an unroutable mandatory message of a transaction comes back.
    """

    host: _Host = "127.0.0.1"
    port: _Port = 5672
    heartbeat_s: Annotated[int, seconds(0, 65_535, whole=True)] = 60
    frame_max: Annotated[int, size(4_096, 128 * MIB)] = 131_072
    channel_max: Annotated[int, Number(1, 65_535)] = 2_047
    handshake_timeout_s: Annotated[float, seconds(0.1)] = 10.0
    on_backup: Annotated[Literal["carry", "refuse"], Text("'carry' or 'refuse'", "carry|refuse")] = "carry"
    mandatory_in_tx: Annotated[Literal["publish", "commit"], Text("'publish' or 'commit'", "publish|commit")] = (
        "publish"
    )
    carry: Annotated[CarryConfig, Table(CarryConfig)] = CarryConfig()
    tls: Annotated[ClientTlsConfig | None, Table(ClientTlsConfig)] = None


@frozen(kw_only=True)
class HttpConfig:
    """[http]: pages of status and health, and /metrics. With `tls` the port speaks TLS only."""

    host: _Host = "127.0.0.1"
    port: _Port = 8672
    tls: Annotated[TlsConfig | None, Table(TlsConfig)] = None


@frozen(kw_only=True)
class LinkConfig:
    """[link]: where the other brokers of the group connect, and the secret that all of them share.

    With `unix`, those on this machine connect over a socket in the data directory instead of TCP, if its path is short enough.
    `advertised` is where they connect if that is not `host` and `port`: a forwarded port, a proxy. They then use TCP alone.
    """

    host: _Host = "127.0.0.1"
    port: _Port = 7672
    secret: Annotated[str | None, Text("a shared secret", secret=True)] = field(default=None, repr=False)
    heartbeat_s: Annotated[float, seconds(0.01)] = 1.0
    dead_after_s: Annotated[float, seconds(0.01)] = 5.0
    advertised: Annotated[str | None, HostPort()] = None
    unix: Annotated[bool, Flag()] = True
    tls: Annotated[TlsConfig | None, Table(TlsConfig)] = None


@frozen(kw_only=True)
class JournalConfig:
    """[journal]: `reserve_bytes` are kept preallocated, so that decisions can be written when the disk is full.

    None: as the disk is large (`server.files.disk_size`).
    """

    segment_bytes: Annotated[int, size(64 * KIB, 4 * GIB)] = 64 * MIB
    reserve_bytes: Annotated[int | None, size(0)] = None


@frozen(kw_only=True)
class HaConfig:
    """[ha]: read by the HA plugin.

    Attributes:
        backup_timeout_s: a member that acknowledged nothing for so long while something was outstanding is expelled.
        expected_timeout_s: how long a start waits for listed brokers before it goes on without them.
        reconnect_min_s, reconnect_max_s: the pause between attempts to reach the primary grows from one to the other.
        min_insync: the least in-sync set that decides. The founder's is the group's from then on. None: 1, for a founder does not
            know how many will join it; `understudy cluster` writes 2 for three brokers and more.
        found: this broker may found the group, if store and data are empty. Off, because a broker that lost both would found
            a second group beside the first.
        replicate: how much is replicated of queues that do not say it (`x-ha-replicate`) and are not durable (decision 0014).
    """

    backup_timeout_s: Annotated[float, seconds(0.1)] = 5.0
    expected_timeout_s: Annotated[float, seconds(0.1)] = 10.0
    reconnect_min_s: Annotated[float, seconds(0.001)] = 0.1
    reconnect_max_s: Annotated[float, seconds(0.001)] = 2.0
    min_insync: Annotated[int | None, Number(1, 64)] = None
    found: Annotated[bool, Flag()] = False
    replicate: Annotated[
        Literal["all", "configuration", "none"], Text("'all', 'configuration' or 'none'", "all|configuration|none")
    ] = "all"


@frozen(kw_only=True)
class StoreTlsConfig:
    """[coordination.tls]: the certificate of a server must be signed by one of `ca`; `cert` and `key` are shown to it."""

    ca: Annotated[Path, FilePath("the path of PEM certificates")]
    cert: Annotated[Path | None, FilePath("the path of a PEM certificate chain")] = None
    key: Annotated[Path | None, FilePath("the path of a PEM private key")] = None


@frozen(kw_only=True)
class CoordinationConfig:
    """[coordination]: `file` is a file at `path` that all brokers of one host share; `zookeeper` is an ensemble at `hosts`.

    Attributes:
        lease_s: of `file`: a broker that has not renewed its lease for so long counts as gone.
        session_s: of `zookeeper`: a broker whose heartbeats stop counts as gone after so long.
        chroot: of `zookeeper`: the path below which everything is kept.
        user, password, password_file: of `zookeeper`: digest credentials; nodes belong to them, and anybody may read.
    """

    kind: Annotated[Literal["file", "zookeeper"], Text("'file' or 'zookeeper'", "file|zookeeper")] = "file"
    path: Annotated[Path | None, FilePath("the path of a file that all brokers of the group share")] = None
    hosts: Annotated[tuple[str, ...], Texts("a list of different 'host:port'", HostPort())] = ()
    lease_s: Annotated[float, seconds(0.1)] = 3.0
    session_s: Annotated[float, seconds(0.1)] = 10.0
    chroot: Annotated[str, CHROOT] = ""
    user: Annotated[str, Text("a user name without ':'", r"[^\x00-\x1f:]{1,127}")] = ""
    password: Annotated[str | None, Text("a password", secret=True)] = field(default=None, repr=False)
    password_file: Annotated[Path | None, FilePath("the path of a file that holds the password")] = None
    tls: Annotated[StoreTlsConfig | None, Table(StoreTlsConfig)] = None


@frozen(kw_only=True)
class TxConfig:
    """[tx]: local transactions. An idle one is rolled back (406); outcomes can be asked for `outcome_ttl_s` (G8)."""

    idle_timeout_s: Annotated[float, seconds(1, 30 * DAY_S)] = 1_800.0
    outcome_ttl_s: Annotated[float, seconds(1, 30 * DAY_S)] = 3_600.0
    outcome_limit: Annotated[int, Number(1, 100_000_000)] = 1_000_000
    max_bytes: Annotated[int, size(1)] = 256 * MIB
    memory_bytes: Annotated[int, size(0)] = 16 * MIB


@frozen(kw_only=True)
class TransactionsConfig:
    """[transactions]: who orders commits: a name of the entry point group `understudy.coordinators`, and what it is told.

    What it has withheld for `max_withheld_ms` is committed without it.
    """

    coordinator: Annotated[str, Text("the name of a coordinator", r"[^\x00-\x1f]{1,100}")] = "group_commit"
    max_withheld_ms: Annotated[float, milliseconds_of(1, 60_000)] = 1_000.0
    options: Annotated[Mapping[str, str], Named(Text("a text"))] = field(factory=dict)


@frozen(kw_only=True)
class DtxConfig:
    """[dtx]: distributed transactions. A branch that is not prepared within `timeout_s` (a client may set it) is rolled back."""

    timeout_s: Annotated[float, seconds(1, 3_600)] = 60.0


@frozen(kw_only=True)
class GroupConfig:
    """[group]: what shares one fsync and one round trip.

    Attributes:
        min_wait_ms: commits are held back so long for others to join them; 0: no longer than the turn and the fsync before it.
        count: so many commits are not held back any longer; 0: no number ends the wait.
        max_wait_ms: what nobody waits for (the content of open transactions) goes with the next commit, or after so long.
    """

    min_wait_ms: Annotated[float, milliseconds_of(0, 1_000)] = 0.0
    count: Annotated[int, Number(0, 1_000_000)] = 0
    max_wait_ms: Annotated[float, milliseconds_of(0, 1_000)] = 2.0


@frozen(kw_only=True)
class LimitsConfig:
    """[limits]: the bounds. docs/configuration.md says what each does when it is reached."""

    unstable_bytes: Annotated[int, size(MIB)] = 64 * MIB
    unstable_bytes_per_connection: Annotated[int, size(64 * KIB)] = 4 * MIB
    link_unacknowledged_bytes: Annotated[int, size(MIB)] = 64 * MIB
    outgoing_bytes_per_client: Annotated[int, size(64 * KIB)] = 8 * MIB
    queue_memory_bytes: Annotated[int, size(0)] = 256 * MIB
    message_bytes: Annotated[int, size(KIB, 512 * MIB)] = 128 * MIB
    connections: Annotated[int, Number(1, 1_000_000)] = 10_000
    consumer_timeout_s: Annotated[float, seconds(1, 365 * DAY_S)] = 1_800.0
    memory_ratio: Annotated[float, Number(0.001, 1.0, whole=False, what="a share of the RAM")] = 0.4


@frozen(kw_only=True)
class KafkaTlsConfig:
    """[kafka.tls]: `ca` signs the servers' certificates (none: the CAs of the system do); `cert` and `key` are shown to them."""

    ca: Annotated[Path | None, FilePath("the path of PEM certificates")] = None
    cert: Annotated[Path | None, FilePath("the path of a PEM certificate chain")] = None
    key: Annotated[Path | None, FilePath("the path of a PEM private key")] = None


@frozen(kw_only=True)
class KafkaConfig:
    """[kafka]: a Kafka cluster that events or committed transactions go to, and as whom to come. With `tls` over TLS only."""

    hosts: Annotated[tuple[str, ...], Texts("a list of different 'host:port'", HostPort())] = ()
    client_id: Annotated[str, Text("1 to 100 letters, digits, '.', '_' and '-'", r"[A-Za-z0-9._-]{1,100}")] = (
        "understudy"
    )
    sasl: Annotated[
        Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        Text("'PLAIN', 'SCRAM-SHA-256' or 'SCRAM-SHA-512'", "PLAIN|SCRAM-SHA-256|SCRAM-SHA-512"),
    ] = ""
    user: Annotated[str, Text("a user name", _NAME)] = ""
    password_file: Annotated[Path | None, FilePath("the path of a file that holds the password")] = None
    tls: Annotated[KafkaTlsConfig | None, Table(KafkaTlsConfig)] = None


@frozen(kw_only=True)
class FeedConfig:
    """[feed]: `hold_bytes` of the journal are kept at most for readers of the event feed that are behind; 0: nothing is.

    With `facts` the broker writes what is no record (roles, links, readiness, refusals) into files beside its journal; with
    the `detail` "messages" also what clients are told: deliveries, requeues, confirms, outcomes.

    The others are for the plugin `feed`, which runs `understudy feed` beside the broker: into files in `out`, or into the `topic`
    of the Kafka that [kafka] names.
    """

    facts: Annotated[bool, Flag()] = True
    detail: Annotated[Literal["roles", "messages"], Text("'roles' or 'messages'", "roles|messages")] = "roles"
    out: Annotated[Path | None, FilePath("the directory that the plugin 'feed' writes files to")] = None
    topic: Annotated[str, Text(_TOPIC_EXPECTED, _TOPIC)] = ""
    format: Annotated[Literal["jsonl", "parquet"], Text("'jsonl' or 'parquet'", "jsonl|parquet")] = "jsonl"
    roll_bytes: Annotated[int, size(KIB, GIB)] = 32 * MIB
    roll_s: Annotated[float, seconds(0.1)] = 60.0
    hold_bytes: Annotated[int, size(0)] = GIB


_TOPIC_FORM: Final = r"(?:[A-Za-z0-9._-]|\{(?:vhost|queue|group)\}){0,249}"


@frozen(kw_only=True)
class OutletRuleConfig:
    """One of [[outlet.rules]]: messages of these queues go to that topic; "" is no topic, and they are not sent."""

    queues: Annotated[str, Text("a pattern of vhost/queue, with '*' and '?'", r"[^\x00-\x1f]{1,1000}")]
    topic: Annotated[str, Text("a topic of Kafka, with {vhost}, {queue} and {group}, or ''", _TOPIC_FORM)]


@frozen(kw_only=True)
class OutletConfig:
    """[outlet]: committed transactions go to the Kafka that [kafka] names. Read by the plugin `outlet`, and `understudy outlet`.

    Attributes:
        rules: the first that matches a queue says its topic; `topic` is that of all others.
        position_topic, transactional_id: where the position stands, and who sends, of all brokers of the group.
        plain: messages that were published outside of transactions are sent, too.
        dead_letters: this broker repeats the bodies of dead letters in its log for `understudy outlet`; the plugin needs no word.
        begin: where an outlet begins that never sent anything: with the oldest record of the journal, or at its end.
        create_topics: topics that are missing are made, with Kafka's defaults.
        group_messages, group_bytes: of one Kafka transaction; a larger source transaction has one of its own.
        transaction_timeout_s: Kafka aborts a transaction that is open for longer.
        max_message_bytes: a message that takes more as a record of Kafka cannot be sent.
        on_unsendable: a message that cannot be sent goes to `unsendable_topic`, is left out, or ends the outlet.
    """

    topic: Annotated[str, Text("a topic of Kafka, with {vhost}, {queue} and {group}, or ''", _TOPIC_FORM)] = (
        "understudy.{group}"
    )
    rules: Annotated[tuple[OutletRuleConfig, ...], Tables(OutletRuleConfig)] = ()
    position_topic: Annotated[str, Text("a topic of Kafka, with {group}", r"(?:[A-Za-z0-9._-]|\{group\}){1,249}")] = (
        "understudy.{group}.position"
    )
    transactional_id: Annotated[
        str, Text("1 to 249 letters, digits, '.', '_', '-', with {group}", r"(?:[A-Za-z0-9._-]|\{group\}){1,249}")
    ] = "understudy.{group}.outlet"
    plain: Annotated[bool, Flag()] = True
    dead_letters: Annotated[bool, Flag()] = False
    begin: Annotated[Literal["oldest", "newest"], Text("'oldest' or 'newest'", "oldest|newest")] = "oldest"
    create_topics: Annotated[bool, Flag()] = False
    group_messages: Annotated[int, Number(1, 1_000_000)] = 2_000
    group_bytes: Annotated[int, size(1)] = 4 * MIB
    transaction_timeout_s: Annotated[float, seconds(1, 900)] = 300.0
    max_message_bytes: Annotated[int, size(KIB, GIB)] = MIB
    on_unsendable: Annotated[Literal["aside", "skip", "stop"], Text("'aside', 'skip' or 'stop'", "aside|skip|stop")] = (
        "aside"
    )
    unsendable_topic: Annotated[str, Text("a topic of Kafka, with {group}", r"(?:[A-Za-z0-9._-]|\{group\}){1,249}")] = (
        "understudy.{group}.unsendable"
    )


@frozen(kw_only=True)
class ShutdownConfig:
    """[shutdown]: how long a stopping broker flushes and answers before it closes what is left."""

    grace_s: Annotated[float, seconds(0, 3_600)] = 10.0


@frozen(kw_only=True)
class _PermissionTable:
    configure: Annotated[str, Pattern()] = ""
    write: Annotated[str, Pattern()] = ""
    read: Annotated[str, Pattern()] = ""
    admin: Annotated[str, Pattern()] = ""


def _permissions(table: _PermissionTable) -> Permissions:
    return Permissions(table.configure, table.write, table.read, table.admin)


@frozen(kw_only=True)
class UserConfig:
    """One of [[users]]: a name, its scrypt hash, and per vhost what it may configure, write, read and command.

    Without a hash it logs in by a certificate alone. With `monitoring` it may read the HTTP pages from other hosts.
    """

    name: Annotated[str, Text("a user name", _USER)]
    password_hash: Annotated[str | None, PasswordHash()] = field(default=None, repr=False)
    monitoring: Annotated[bool, Flag()] = False
    vhosts: Annotated[Mapping[str, Permissions], Named(Table(_PermissionTable), _permissions)] = field(factory=dict)


def guest(vhosts: tuple[str, ...] = ("/",)) -> UserConfig:
    """The user of a configuration that names none: guest/guest, everything in every vhost, from loopback only."""
    everything = {vhost: Permissions(".*", ".*", ".*", ".*") for vhost in vhosts}
    return UserConfig(name="guest", password_hash=GUEST_PASSWORD_HASH, vhosts=everything)


@frozen(kw_only=True)
class PolicyConfig:
    """One of [[policy]]: settings of the queues and exchanges whose names `pattern` finds.

    Attributes:
        vhost: where it applies; none is everywhere.
        apply_to: RabbitMQ's spelling `apply-to` is read, too.
        priority: of several policies for one name, the highest applies; of equal ones the first in the file.
        definition: RabbitMQ's keys (`core.topology.policies.KEYS`) and their values.
    """

    name: Annotated[str, Text("a name of 1 to 255 characters", r"[^\x00-\x1f]{1,255}")]
    pattern: Annotated[str, Pattern("a regular expression", empty=False)]
    vhost: Annotated[str | None, Text("a vhost name", _NAME)] = None
    apply_to: Annotated[
        Literal["queues", "exchanges", "all"], Text("'queues', 'exchanges' or 'all'", "queues|exchanges|all")
    ] = "all"
    priority: Annotated[int, Number(-(1 << 31), (1 << 31) - 1)] = 0
    definition: Annotated[Mapping[str, Any], Definition()]


@frozen(kw_only=True)
class Config:
    """A whole configuration; `Config()` is that of an empty file."""

    broker: Annotated[BrokerConfig, Table(BrokerConfig)] = BrokerConfig()
    amqp: Annotated[AmqpConfig, Table(AmqpConfig)] = AmqpConfig()
    http: Annotated[HttpConfig, Table(HttpConfig)] = HttpConfig()
    link: Annotated[LinkConfig, Table(LinkConfig)] = LinkConfig()
    journal: Annotated[JournalConfig, Table(JournalConfig)] = JournalConfig()
    ha: Annotated[HaConfig, Table(HaConfig)] = HaConfig()
    coordination: Annotated[CoordinationConfig, Table(CoordinationConfig)] = CoordinationConfig()
    tx: Annotated[TxConfig, Table(TxConfig)] = TxConfig()
    transactions: Annotated[TransactionsConfig, Table(TransactionsConfig)] = TransactionsConfig()
    dtx: Annotated[DtxConfig, Table(DtxConfig)] = DtxConfig()
    group: Annotated[GroupConfig, Table(GroupConfig)] = GroupConfig()
    limits: Annotated[LimitsConfig, Table(LimitsConfig)] = LimitsConfig()
    feed: Annotated[FeedConfig, Table(FeedConfig)] = FeedConfig()
    kafka: Annotated[KafkaConfig, Table(KafkaConfig)] = KafkaConfig()
    outlet: Annotated[OutletConfig, Table(OutletConfig)] = OutletConfig()
    shutdown: Annotated[ShutdownConfig, Table(ShutdownConfig)] = ShutdownConfig()
    policy: Annotated[tuple[PolicyConfig, ...], PolicyTables(PolicyConfig)] = ()
    plugins: Annotated[Mapping[str, bool], Named(Flag())] = field(factory=dict)
    users: Annotated[tuple[UserConfig, ...], Tables(UserConfig)] = Factory(
        lambda self: (guest(self.broker.vhosts),), takes_self=True
    )
