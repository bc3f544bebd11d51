"""Defaults, units, and above all: what is refused, and that the message names file, key, value, expectation and nearest key."""

from __future__ import annotations

import tomllib
from pathlib import Path

import attrs
import pytest

from understudy.broker import config as module
from understudy.broker.config import Config, ConfigError, is_loopback_host, load, milliseconds, parse, structure
from understudy.broker.security import Permissions, hash_password, verify_password

TLS = 'tls = { cert = "c", key = "k", ca = "a", user_from = "common_name" }\n'
HASH = hash_password("a-pass", b"0123456789abcdef", ln=1)

FULL = f"""
[broker]
id = "b2"
group = "payments"
data = "store/b2"
vhosts = ["/", "test"]

[amqp]
host = "0.0.0.0"
port = 5673
heartbeat_s = "30s"
frame_max = "64KiB"
channel_max = 100
handshake_timeout_s = "500ms"
on_backup = "refuse"
mandatory_in_tx = "commit"
carry = {{ connections = 5, wait_s = "2s" }}

[amqp.tls]
cert = "b2.pem"
key = "/etc/b2.key"
ca = "ca.pem"
host = "::"
port = 0
user_from = "subject_alternative_name"
san_type = "uri"
san_index = 1

[http]
host = "::1"
port = 0
tls = {{ cert = "http.pem", key = "http.key" }}

[link]
host = "10.0.0.2"
port = 7700
secret = "s3cret of the group"
heartbeat_s = 0.5
dead_after_s = 2
advertised = "gate:17672"
unix = false
tls = {{ cert = "b2.pem", key = "b2.key", ca = "ca.pem" }}

[journal]
segment_bytes = "16MiB"
reserve_bytes = 0

[ha]
backup_timeout_s = "2500ms"
expected_timeout_s = "1min"
reconnect_min_s = 0.05
reconnect_max_s = 1
min_insync = 2
found = true
replicate = "configuration"

[coordination]
kind = "zookeeper"
hosts = ["zk1:2181", "zk2:2181"]
lease_s = 4
session_s = 6
chroot = "/production/mq"
user = "understudy"
password = "hush"

[coordination.tls]
ca = "zk-ca.pem"
cert = "zk.pem"
key = "zk.key"

[tx]
idle_timeout_s = "1h"
outcome_ttl_s = "2h"
outcome_limit = 10
max_bytes = "1GiB"
memory_bytes = "8MiB"

[transactions]
coordinator = "priority"
max_withheld_ms = "2s"
[transactions.options]
header = "x-priority"

[dtx]
timeout_s = 90

[group]
min_wait_ms = 1
count = 32
max_wait_ms = "1s"

[limits]
unstable_bytes = "32MiB"
unstable_bytes_per_connection = 1048576
link_unacknowledged_bytes = "1.5MiB"
outgoing_bytes_per_client = "128KiB"
queue_memory_bytes = "32MiB"
message_bytes = "16MiB"
connections = 500
consumer_timeout_s = "1h"
memory_ratio = 0.25

[feed]
facts = false
detail = "messages"
out = "feed"
topic = "events"
format = "parquet"
roll_bytes = "1MiB"
roll_s = "5s"
hold_bytes = "1GiB"

[kafka]
hosts = ["k1:9092", "k2:9092"]
client_id = "orders"
sasl = "SCRAM-SHA-512"
user = "understudy"
password_file = "kafka.password"

[kafka.tls]
ca = "kafka-ca.pem"
cert = "kafka.pem"
key = "kafka.key"

[outlet]
topic = "rest.{{vhost}}"
rules = [{{queues = "//orders*", topic = "orders.{{queue}}"}}, {{queues = "//audit", topic = ""}}]
position_topic = "{{group}}.place"
transactional_id = "{{group}}.sends"
plain = false
dead_letters = true
begin = "newest"
create_topics = true
group_messages = 500
group_bytes = "1MiB"
transaction_timeout_s = "2min"
max_message_bytes = "8MiB"
on_unsendable = "skip"
unsendable_topic = "{{group}}.unsendable"

[shutdown]
grace_s = 0

[plugins]
ha = true
audit-log = false

[[users]]
name = "ann"
password_hash = "{HASH}"
monitoring = true
vhosts = {{ "/" = {{ configure = "^ann\\\\.", write = ".*", read = "", admin = "^status$" }}, test = {{}} }}

[[users]]
name = "bob"
password_hash = "{HASH}"
"""


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, file="b.toml")
    error = caught.value
    assert str(error).startswith("b.toml: ")
    assert error.file == "b.toml"
    return error


# ------------------------------------------------------------------------------------------------------------- defaults


def test_the_defaults_are_those_of_the_design() -> None:
    config = Config()
    assert (config.amqp.host, config.amqp.port) == ("127.0.0.1", 5672)
    assert (config.amqp.heartbeat_s, config.amqp.frame_max, config.amqp.channel_max) == (60, 131_072, 2_047)
    assert (config.link.heartbeat_s, config.link.dead_after_s, config.link.secret) == (1, 5, None)
    assert config.link.unix
    assert (config.journal.segment_bytes, config.journal.reserve_bytes) == (64 << 20, None)
    assert (config.ha.backup_timeout_s, config.ha.expected_timeout_s) == (5, 10)
    assert (config.ha.reconnect_min_s, config.ha.reconnect_max_s) == (0.1, 2)
    assert (config.ha.min_insync, config.ha.found) == (None, False)
    assert (config.coordination.kind, config.coordination.lease_s, config.coordination.session_s) == ("file", 3, 10)
    assert (config.tx.idle_timeout_s, config.tx.outcome_ttl_s, config.tx.outcome_limit) == (1_800, 3_600, 1_000_000)
    assert (config.group.min_wait_ms, config.group.max_wait_ms) == (0, 2)
    assert config.limits == module.LimitsConfig(
        unstable_bytes=64 << 20,
        unstable_bytes_per_connection=4 << 20,
        link_unacknowledged_bytes=64 << 20,
        outgoing_bytes_per_client=8 << 20,
        queue_memory_bytes=256 << 20,
        message_bytes=128 << 20,
        connections=10_000,
        consumer_timeout_s=1_800,
        memory_ratio=0.4,
    )
    assert (config.amqp.handshake_timeout_s, config.shutdown.grace_s) == (10, 10)
    assert config.plugins == {}


def test_everything_listens_on_loopback_unless_told_otherwise() -> None:
    config = Config()
    assert all(is_loopback_host(section.host) for section in (config.amqp, config.link, config.http))


def test_an_empty_file_is_the_default() -> None:
    assert parse("") == Config()


def test_empty_sections_are_the_default() -> None:
    sections = [name for name in attrs.fields_dict(Config) if name not in {"users", "policy"}]
    assert parse("\n".join(f"[{name}]" for name in sections)) == Config()


def test_guest_may_do_everything_in_every_configured_vhost() -> None:
    (guest,) = parse('[broker]\nvhosts = ["/", "test"]').users
    assert guest.name == "guest"
    assert guest.password_hash is not None
    assert verify_password("guest", guest.password_hash)
    assert guest.vhosts == dict.fromkeys(("/", "test"), Permissions(".*", ".*", ".*", ".*"))


def test_guest_is_gone_when_users_are_named() -> None:
    config = parse(f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"')
    assert [user.name for user in config.users] == ["ann"]


# --------------------------------------------------------------------------------------------------------------- values


def test_a_file_with_every_key() -> None:
    config = parse(FULL, base=Path("/etc/understudy"))
    assert config.broker == module.BrokerConfig(
        id="b2", group="payments", data=Path("/etc/understudy/store/b2"), vhosts=("/", "test")
    )
    assert config.amqp == module.AmqpConfig(
        host="0.0.0.0",
        port=5673,
        heartbeat_s=30,
        frame_max=65_536,
        channel_max=100,
        handshake_timeout_s=0.5,
        on_backup="refuse",
        mandatory_in_tx="commit",
        carry=module.CarryConfig(connections=5, wait_s=2.0),
        tls=module.ClientTlsConfig(
            cert=Path("/etc/understudy/b2.pem"),
            key=Path("/etc/b2.key"),
            ca=Path("/etc/understudy/ca.pem"),
            host="::",
            port=0,
            user_from="subject_alternative_name",
            san_type="uri",
            san_index=1,
        ),
    )
    tls = module.TlsConfig(cert=Path("/etc/understudy/http.pem"), key=Path("/etc/understudy/http.key"))
    assert config.http == module.HttpConfig(host="::1", port=0, tls=tls)
    assert config.link.secret == "s3cret of the group"
    assert (config.link.heartbeat_s, config.link.dead_after_s, config.link.unix) == (0.5, 2.0, False)
    assert config.link.advertised == "gate:17672"
    assert config.link.tls is not None
    assert config.link.tls.ca == Path("/etc/understudy/ca.pem")
    assert config.journal == module.JournalConfig(segment_bytes=16 << 20, reserve_bytes=0)
    assert config.ha == module.HaConfig(
        backup_timeout_s=2.5,
        expected_timeout_s=60.0,
        reconnect_min_s=0.05,
        reconnect_max_s=1.0,
        min_insync=2,
        found=True,
        replicate="configuration",
    )
    assert config.coordination == module.CoordinationConfig(
        kind="zookeeper",
        hosts=("zk1:2181", "zk2:2181"),
        lease_s=4.0,
        session_s=6.0,
        chroot="/production/mq",
        user="understudy",
        password="hush",
        tls=module.StoreTlsConfig(
            ca=Path("/etc/understudy/zk-ca.pem"),
            cert=Path("/etc/understudy/zk.pem"),
            key=Path("/etc/understudy/zk.key"),
        ),
    )
    assert "hush" not in repr(config)
    assert config.tx == module.TxConfig(
        idle_timeout_s=3_600.0, outcome_ttl_s=7_200.0, outcome_limit=10, max_bytes=1 << 30, memory_bytes=8 << 20
    )
    assert config.transactions == module.TransactionsConfig(
        coordinator="priority", max_withheld_ms=2_000.0, options={"header": "x-priority"}
    )
    assert config.dtx == module.DtxConfig(timeout_s=90.0)
    assert config.group == module.GroupConfig(min_wait_ms=1.0, count=32, max_wait_ms=1_000.0)
    assert config.limits.link_unacknowledged_bytes == 3 << 19
    assert config.limits.memory_ratio == 0.25
    assert [(rule.queues, rule.topic) for rule in config.outlet.rules] == [
        ("//orders*", "orders.{queue}"),
        ("//audit", ""),
    ]
    assert (config.outlet.transaction_timeout_s, config.outlet.max_message_bytes) == (120.0, 8 << 20)
    assert config.shutdown.grace_s == 0
    assert config.plugins == {"ha": True, "audit-log": False}
    ann, bob = config.users
    assert ann.vhosts == {"/": Permissions("^ann\\.", ".*", "", "^status$"), "test": Permissions()}
    assert bob.vhosts == {}


def test_the_full_file_leaves_no_key_out() -> None:
    table = tomllib.loads(FULL)
    for name, section in attrs.asdict(parse(FULL), recurse=False).items():
        if name in {"plugins", "users", "policy"}:
            continue
        left_out = attrs.fields_dict(type(section)).keys() - table[name].keys()
        assert left_out <= {"path", "password_file"}, f"[{name}] lacks {left_out}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[plugins]\noutlet = true",
            "kafka.hosts: missing, expected a list of 'host:port', because plugins.outlet is true",
        ),
        ('[outlet]\ntopic = "a b"', "outlet.topic: 'a b' is not valid"),
        ('[outlet]\ntopic = "{user}"', "outlet.topic: '{user}' is not valid"),
        ('[[outlet.rules]]\nqueues = "x"', "outlet.rules[0].topic: missing"),
        ('[[outlet.rules]]\nqueues = ""\ntopic = "t"', "outlet.rules[0].queues: '' is not valid"),
    ],
)
def test_what_an_outlet_cannot_use_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ('pattern = "["\ndefinition = { expires = 5 }', "policy[0].pattern", "'[' is not valid, expected a regular"),
        ('pattern = ""\ndefinition = { expires = 5 }', "policy[0].pattern", "'' is not valid"),
        ("pattern = 5\ndefinition = { expires = 5 }", "policy[0].pattern", "5 is not valid"),
        ('pattern = "a"', "policy[0].definition", "missing"),
        ('pattern = "a"\ndefinition = {}', "policy[0].definition", "{} is not valid"),
        (
            'pattern = "a"\ndefinition = { max-lenght = 5 }',
            "policy[0].definition.max-lenght",
            "unknown setting, the nearest known one is max-length",
        ),
        ('pattern = "a"\ndefinition = { max-length = -5 }', "policy[0].definition.max-length", "-5 is not a number"),
        ('pattern = "a"\ndefinition = { max-length = true }', "policy[0].definition.max-length", "True is not a num"),
        ('pattern = "a"\ndefinition = { max-length = 5.0 }', "policy[0].definition.max-length", "5.0 is not a num"),
        ('pattern = "a"\ndefinition = { expires = "5s" }', "policy[0].definition.expires", "'5s' is not a number"),
        ('pattern = "a"\ndefinition = { overflow = "drop" }', "policy[0].definition.overflow", "'drop' is none of"),
        ('pattern = "a"\napply_to = "topics"\ndefinition = { expires = 5 }', "policy[0].apply_to", "'topics' is not"),
        (
            'pattern = "a"\napply-to = "exchanges"\ndefinition = { expires = 5 }',
            "policy[0].apply_to",
            "'exchanges' is not valid, expected 'all' or 'queues', because policy 'orders' sets 'expires'",
        ),
        ('pattern = "a"\nvhost = "b"\ndefinition = { expires = 5 }', "policy[0].vhost", "'b' is not valid"),
        ('pattern = "a"\npriority = 0.5\ndefinition = { expires = 5 }', "policy[0].priority", "0.5 is not valid"),
        (
            'pattern = "a"\ndefinition = { delayed-retry-type = "all", delayed-retry-min = 500, delayed-retry-max = 499 }',
            "policy[0].definition.delayed-retry-max",
            "499 is not valid, expected at least delayed-retry-min (500) of policy 'orders'",
        ),
        (
            'pattern = "a"\ndefinition = { delayed-retry-min = 2, delayed-retry-max = 1 }',
            "policy[0].definition.delayed-retry-max",
            "1 is not valid, expected at least delayed-retry-min (2)",
        ),
        (
            'pattern = "a"\ndefinition = { delayed-retry-type = "failed" }',
            "policy[0].definition.delayed-retry-min",
            "missing, expected milliseconds, because policy 'orders' has delayed-retry-type 'failed'",
        ),
        (
            'pattern = "a"\ndefinition.expires = 5\n[[policy]]\nname = "orders"\npattern = "b"\ndefinition.expires = 5',
            "policy[1].name",
            "'orders' is not valid, expected a name that policy[0] does not have",
        ),
    ],
)
def test_what_is_wrong_with_a_policy_is_told_with_its_name(text: str, key: str, said: str) -> None:
    error = refusal(f'[[policy]]\nname = "orders"\n{text}')
    assert error.key == key
    assert said in error.problem
    assert "orders" in str(error)


@pytest.mark.parametrize(
    "definition",
    [
        'delayed-retry-type = "all", delayed-retry-min = 500, delayed-retry-max = 500',
        'delayed-retry-type = "disabled"',
        "delayed-retry-max = 1",
    ],
)
def test_delays_of_a_policy_that_a_queue_may_complete(definition: str) -> None:
    (policy,) = parse(f'[[policy]]\nname = "p"\npattern = "a"\ndefinition = {{ {definition} }}').policy
    assert policy.definition


def test_a_policy_in_both_spellings() -> None:
    for spelling in ("apply-to", "apply_to"):
        (policy,) = parse(
            f'[[policy]]\nname = "p"\npattern = "^a"\n{spelling} = "queues"\npriority = -3\n'
            "definition = { max-length = 0, dead-letter-exchange = '' }"
        ).policy
        assert policy == module.PolicyConfig(
            name="p",
            pattern="^a",
            apply_to="queues",
            priority=-3,
            definition={"max-length": 0, "dead-letter-exchange": ""},
        )


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("5", 5.0), ("0.5", 0.5), ('"5s"', 5.0), ('"100ms"', 0.1), ('"2min"', 120.0), ('"1.5 h"', 5_400.0)],
)
def test_durations(written: str, seconds: float) -> None:
    read = parse(f"[ha]\nexpected_timeout_s = {written}").ha.expected_timeout_s
    assert read == seconds
    assert isinstance(read, float)


@pytest.mark.parametrize(
    ("written", "size"),
    [("65536", 65_536), ('"1MiB"', 1 << 20), ('"0.5 GiB"', 1 << 29), ('"70000B"', 70_000), ('"64KiB"', 65_536)],
)
def test_sizes(written: str, size: int) -> None:
    read = parse(f"[journal]\nsegment_bytes = {written}").journal.segment_bytes
    assert read == size
    assert isinstance(read, int)


def test_milliseconds_rounds() -> None:
    assert milliseconds(0.1) == 100
    assert milliseconds(parse('[ha]\nbackup_timeout_s = "333ms"').ha.backup_timeout_s) == 333


# -------------------------------------------------------------------------------------------------------- unknown keys


@pytest.mark.parametrize("text", ["[dtx]\nmax_timeout_s = 60", "[group]\nsize = 3", "[limits]\nmemory_limit = 1"])
def test_what_nothing_reads_is_unknown(text: str) -> None:
    assert "unknown key" in str(refusal(text))


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("[amqp]\nheartbeat = 60", "amqp.heartbeat", "amqp.heartbeat_s"),
        ("[amqp]\nprot = 1", "amqp.prot", "amqp.port"),
        ("[limits]\nunstable_byte = 1", "limits.unstable_byte", "limits.unstable_bytes"),
        ("[lnk]\nport = 1", "lnk", "link"),
        ("port = 5672", "port", "amqp.port"),
        ('[amqp]\nsecret = "x"', "amqp.secret", "link.secret"),
        ('[broker]\nmin_insync = "x"', "broker.min_insync", "ha.min_insync"),
        ('[amqp]\ntls = { crt = "x" }', "amqp.tls.crt", "amqp.tls.cert"),
        (f'[[users]]\nname = "ann"\npassword_hsh = "{HASH}"', "users[0].password_hsh", "users[0].password_hash"),
        (
            f'[[users]]\nname = "a"\npassword_hash = "{HASH}"\nvhosts = {{ "/" = {{ wrte = "" }} }}',
            'users[0].vhosts."/".wrte',
            'users[0].vhosts."/".write',
        ),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(text: str, key: str, nearest: str) -> None:
    error = refusal(text)
    assert (error.key, error.nearest) == (key, nearest)
    assert str(error) == f"b.toml: {key}: unknown key, the nearest known one is {nearest}"


def test_a_key_like_no_other_still_gets_a_nearest_one_of_its_table() -> None:
    error = refusal("[shutdown]\nqqq = 1")
    assert error.nearest == "shutdown.grace_s"


# ------------------------------------------------------------------------------------------------------- wrong values


@pytest.mark.parametrize(
    ("text", "key", "shown", "expected"),
    [
        ("[amqp]\nport = 70000", "amqp.port", "70000", "a whole number from 0 to 65535"),
        ("[amqp]\nport = -1", "amqp.port", "-1", "a whole number"),
        ("[amqp]\nport = true", "amqp.port", "true", "a whole number"),
        ('[amqp]\nport = "5672"', "amqp.port", "'5672'", "a whole number"),
        ("[amqp]\nport = 56.5", "amqp.port", "56.5", "a whole number"),
        ("[amqp]\nhost = 5", "amqp.host", "5", "a host name or an address"),
        ('[amqp]\nhost = ""', "amqp.host", "''", "a host name or an address"),
        ('[amqp]\nhost = "http://x"', "amqp.host", "'http://x'", "a host name or an address"),
        ('[amqp]\nhost = "a..example"', "amqp.host", "'a..example'", "a host name or an address"),
        (
            f'[amqp]\nhost = "{64 * "a"}.example"',
            "amqp.host",
            "'" + 64 * "a" + ".example'",
            "a host name or an address",
        ),
        ('[http]\nhost = "a\\u0000"', "http.host", "'a\\x00'", "a host name or an address"),
        ('[broker]\ndata = "a\\u0000"', "broker.data", "'a\\x00'", "the data directory"),
        ("[amqp]\nframe_max = 4095", "amqp.frame_max", "4095", "bytes from 4096 to"),
        ('[amqp]\nheartbeat_s = "100ms"', "amqp.heartbeat_s", "'100ms'", "whole seconds from 0 to 65535"),
        ('[ha]\nbackup_timeout_s = "5"', "ha.backup_timeout_s", "'5'", "such as '100ms'"),
        ('[ha]\nbackup_timeout_s = "5 parsecs"', "ha.backup_timeout_s", "'5 parsecs'", "such as '100ms'"),
        ("[ha]\nbackup_timeout_s = nan", "ha.backup_timeout_s", "nan", "seconds from 0.1 to 86400"),
        ("[ha]\nbackup_timeout_s = inf", "ha.backup_timeout_s", "inf", "seconds from 0.1 to 86400"),
        ("[ha]\nbackup_timeout_s = 0", "ha.backup_timeout_s", "0", "seconds from 0.1 to 86400"),
        ("[ha]\nfound = 1", "ha.found", "1", "true or false"),
        ('[ha]\nreplicate = "some"', "ha.replicate", "'some'", "'all', 'configuration' or 'none'"),
        ("[ha]\nmin_insync = 0", "ha.min_insync", "0", "a whole number from 1"),
        ('[limits]\nunstable_bytes = "64MB"', "limits.unstable_bytes", "'64MB'", "such as '64MiB'"),
        ('[limits]\nunstable_bytes = "64mib"', "limits.unstable_bytes", "'64mib'", "such as '64MiB'"),
        ("[limits]\nunstable_bytes = [1]", "limits.unstable_bytes", "[1]", "bytes from"),
        ("[limits]\nmemory_ratio = 40", "limits.memory_ratio", "40", "a share of the RAM from 0.001 to 1"),
        ('[coordination]\nkind = "etcd"', "coordination.kind", "'etcd'", "'file' or 'zookeeper'"),
        ('[link]\nadvertised = "b1"', "link.advertised", "'b1'", "'host:port'"),
        ('[coordination]\nhosts = "zk:1"', "coordination.hosts", "'zk:1'", "a list of different 'host:port'"),
        ('[coordination]\nhosts = ["zk"]', "coordination.hosts[0]", "'zk'", "'host:port'"),
        *[
            (f'[coordination]\nhosts = ["{value}"]', "coordination.hosts[0]", f"'{value}'", "a port from 1 to 65535")
            for value in ("127.0.0.1:99999", "zk:0", "zk:abc", "zk:\u0663", "zk..1:2181", "[zk]:1", "::1:1", "\u2100:1")
        ],
        ('[link]\nadvertised = "b1:99999"', "link.advertised", "'b1:99999'", "a port from 1 to 65535"),
        (
            '[coordination]\nchroot = "production"',
            "coordination.chroot",
            "'production'",
            "a path such as '/production'",
        ),
        ('[coordination]\nuser = "a:b"', "coordination.user", "'a:b'", "a user name without ':'"),
        ("[broker]\nvhosts = []", "broker.vhosts", "[]", "a list of different vhost names"),
        ('[broker]\nvhosts = ["/", "/"]', "broker.vhosts", "['/', '/']", "a list of different vhost names"),
        ('[broker]\nvhosts = ["/", ""]', "broker.vhosts[1]", "''", "a vhost name"),
        ('[broker]\nid = "../b1"', "broker.id", "'../b1'", "a name of 1 to 64 letters"),
        ('[broker]\nid = ""', "broker.id", "''", "a name of 1 to 64 letters"),
        ("broker = 5", "broker", "5", "a table"),
        ("users = 5", "users", "5", "an array of tables"),
        ("users = [5]", "users[0]", "5", "a table"),
        ("plugins = 5", "plugins", "5", "a table of names, each with true or false"),
        ('[plugins]\nha = "yes"', "plugins.ha", "'yes'", "true or false"),
        ('[link]\nheartbeat_s = "' + "9" * 200 + '"', "link.heartbeat_s", "'" + "9" * 76 + "...", "seconds from"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(text: str, key: str, shown: str, expected: str) -> None:
    error = refusal(text)
    assert error.key == key
    assert str(error).startswith(f"b.toml: {key}: {shown} is not valid, expected ")
    assert error.expected is not None
    assert expected in error.expected
    assert error.expected in str(error)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[amqp]\ntls = { cert = "x" }', "amqp.tls.key"),
        ("[link]\ntls = {}", "link.tls.cert"),
        (f'[[users]]\npassword_hash = "{HASH}"', "users[0].name"),
        ('[[users]]\nname = "ann"', "users[0].password_hash"),
        ('[amqp]\ntls = { cert = "c", key = "k", host = "::" }', "amqp.tls.port"),
        ('[amqp]\ntls = { cert = "c", key = "k", user_from = "common_name" }', "amqp.tls.ca"),
        (
            "[amqp]\n" + TLS + '[[users]]\nname = "ann"\nmonitoring = true',
            "users[0].password_hash",
        ),
    ],
)
def test_a_missing_key_is_named(text: str, key: str) -> None:
    assert str(refusal(text)).startswith(f"b.toml: {key}: missing, expected ")


@pytest.mark.parametrize("pattern", ["(", "*", "[a", "a{9999999999}"])
def test_a_pattern_that_is_no_regular_expression(pattern: str) -> None:
    text = f'[[users]]\nname = "a"\npassword_hash = "{HASH}"\nvhosts = {{ "/" = {{ read = "{pattern}" }} }}'
    error = refusal(text)
    assert error.key == 'users[0].vhosts."/".read'
    assert "expected a regular expression" in str(error)


@pytest.mark.parametrize(
    "value", ['"topsecret"', '"$scrypt$ln=99,r=8,p=1$topsecret$topsecret"', '["topsecret"]', '{a = "topsecret"}']
)
def test_secrets_are_not_shown(value: str) -> None:
    error = refusal(f'[[users]]\nname = "ann"\npassword_hash = {value}')
    assert error.key == "users[0].password_hash"
    assert "topsecret" not in f"{error!s} {error!r} {error.value!r} {error.__cause__!r}"


def test_a_secret_of_the_wrong_type_is_not_shown() -> None:
    assert "topsecret" not in str(refusal('[link]\nsecret = ["topsecret"]'))


def test_a_printed_configuration_shows_no_secret() -> None:
    printed = repr(parse(FULL))
    assert "s3cret" not in printed
    assert HASH not in printed


# ------------------------------------------------------------------------------------------------------ contradictions


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "b1.example.com"])
def test_a_link_on_another_address_requires_a_secret(host: str) -> None:
    error = refusal(f'[link]\nhost = "{host}"')
    assert error.key == "link.secret"
    assert str(error) == (
        f"b.toml: link.secret: missing, expected a shared secret, because link.host '{host}' is not a loopback address"
    )
    assert parse(f'[link]\nhost = "{host}"\nsecret = "x"').link.host == host


def test_an_empty_secret_is_none() -> None:
    assert refusal('[link]\nhost = "0.0.0.0"\nsecret = ""').key == "link.secret"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST.", "::ffff:127.0.0.1"]
)
def test_loopback_hosts(host: str) -> None:
    assert is_loopback_host(host)
    assert parse(f'[link]\nhost = "{host}"').link.secret is None


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.0.1", "localhost.example.com", "::ffff:10.0.0.1", "128.0.0.1"]
)
def test_other_hosts(host: str) -> None:
    assert not is_loopback_host(host)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[link]\nheartbeat_s = 5", "link.dead_after_s"),
        ("[ha]\nreconnect_max_s = 0.05", "ha.reconnect_max_s"),
        ("[tx]\nidle_timeout_s = 3601", "tx.outcome_ttl_s"),
        ("[group]\nmin_wait_ms = 3", "group.max_wait_ms"),
        ('[limits]\nunstable_bytes = "1MiB"', "limits.unstable_bytes_per_connection"),
        ('[amqp]\nport = 9\ntls = { cert = "c", key = "k", port = 9 }', "amqp.tls.port"),
        ("[plugins]\nha = true", "coordination.path"),
        ("[plugins]\nfeed = true", "feed.out"),
        ('[plugins]\nha = true\n[coordination]\nkind = "zookeeper"', "coordination.hosts"),
        ('[plugins]\nha = true\n[coordination]\npath = "c"\nuser = "u"', "coordination.user"),
        ('[plugins]\nha = true\n[coordination]\npath = "c"\npassword = "p"', "coordination.user"),
        (
            '[plugins]\nha = true\n[coordination]\npath = "c"\nuser = "u"\npassword = "p"\npassword_file = "f"',
            "coordination.password_file",
        ),
        (
            '[plugins]\nha = true\n[coordination]\npath = "c"\n[coordination.tls]\nca = "a"\ncert = "b"',
            "coordination.tls.key",
        ),
        (f'[[users]]\nname = "a"\npassword_hash = "{HASH}"\n' * 2, "users[1].name"),
        (f'[[users]]\nname = "a"\npassword_hash = "{HASH}"\nvhosts = {{ nowhere = {{}} }}', "users[0].vhosts"),
    ],
)
def test_values_that_contradict_each_other(text: str, key: str) -> None:
    assert refusal(text).key == key


def test_coordination_is_asked_for_by_the_ha_plugin_only() -> None:
    assert parse("[plugins]\nha = false").coordination.path is None
    config = parse('[plugins]\nha = true\n[coordination]\npath = "c.db"', base=Path("/x"))
    assert config.coordination.path == Path("/x/c.db")


# ---------------------------------------------------------------------------------------------------------------- files


def test_load_resolves_paths_against_the_file(tmp_path: Path) -> None:
    file = tmp_path / "b1.toml"
    file.write_text('[broker]\nid = "b9"\n', encoding="utf-8")
    config = load(file)
    assert (config.broker.id, config.broker.data) == ("b9", tmp_path / "data")
    file.write_text("", encoding="utf-8")
    assert load(file).broker.data == tmp_path / "data", "the default of an absent section too"


def test_load_names_the_file_in_errors(tmp_path: Path) -> None:
    file = tmp_path / "b1.toml"
    file.write_text("[amqp]\nport = 70000\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert (caught.value.file, caught.value.key, caught.value.value) == (str(file), "amqp.port", 70_000)


def test_unreadable_files(tmp_path: Path) -> None:
    missing, binary, broken = tmp_path / "missing", tmp_path / "binary", tmp_path / "broken"
    binary.write_bytes(b"[broker]\nid = '\xff'\n")
    broken.write_text("[broker]\nid = \n", encoding="utf-8")
    for path, problem in [
        (missing, "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (binary, "is not UTF-8 at byte 15"),
        (broken, "is not TOML: Invalid value (at line 2, column 6)"),
    ]:
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert str(caught.value) == f"{path}: {problem}"
        assert caught.value.key is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("port = " + "9" * 5_000, "has a number of more digits than can be read"),
        ("port = " + "[" * 3_000, "has arrays or tables in each other, deeper than can be read"),
        ("port = " + "{a = " * 3_000, "has arrays or tables in each other, deeper than can be read"),
        ("port = 0x" + "f" * 5_000, "amqp.port: a number of too many digits is not valid, expected a whole number"),
    ],
    ids=["digits", "arrays", "tables", "hexadecimal"],
)
def test_what_python_cannot_read_is_an_error_like_any_other(tmp_path: Path, text: str, problem: str) -> None:
    """Such a file used to end the start with 70, and without a word."""
    file = tmp_path / "b1.toml"
    file.write_text(f"[amqp]\n{text}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}: {problem}")


def test_structure_takes_tables_that_are_already_there() -> None:
    config = structure({"broker": {"id": "b3"}, "amqp": {"port": 5674}}, base=Path("/d"))
    assert (config.broker.id, config.amqp.port, config.broker.data) == ("b3", 5674, Path("/d/data"))


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Config().amqp.port = 1  # type: ignore[misc]


READER = f'[[users]]\nname = "{{}}"\npassword_hash = "{HASH}"\nmonitoring = {{}}\n'


@pytest.mark.parametrize("users", ["", READER.format("ann", "false"), READER.format("guest", "true")])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "b1.example"])
def test_beyond_loopback_the_http_port_needs_a_user(users: str, host: str) -> None:
    error = refusal(f'[http]\nhost = "{host}"\n{users}')
    assert f"a user with monitoring = true, because http.host '{host}' is not a loopback address" in str(error)
    parse(f'[http]\nhost = "{host}"\n{users}' + READER.format("prometheus", "true"))
    parse(f'[http]\nhost = "localhost"\n{users}')
