"""The state file of a feed into Kafka, and the section [kafka] on its way to the feed's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy.broker.config import ConfigError, KafkaConfig, parse
from understudy.broker.config.schema import KafkaTlsConfig
from understudy.observers.edge.kafka_connection import kafka_config
from understudy.observers.feed.edge.kafka.session import partition_of
from understudy.observers.feed.edge.kafka.state import StateFile
from understudy.observers.feed.edge.plugin import KAFKA_VARIABLE, kafka_table
from understudy.observers.feed.reader import CursorError


def test_both_places_come_back(tmp_path: Path) -> None:
    path = tmp_path / "state"
    file = StateFile(path, "t", "id.")
    assert file.state.feed.startswith("id.")
    file.state.done = file.state.done.following({"b1": "one"})
    file.state.begun = file.state.done.following({"b1": "two"})
    file.write()
    written = file.state
    file.close()
    again = StateFile(path, "t", "other.")
    assert again.state == written
    assert again.state.begun is not None
    assert (again.state.done.number, again.state.begun.number) == (1, 2)
    assert again.state.done.mark != again.state.begun.mark
    assert path.stat().st_mode & 0o077 == 0
    again.close()


def test_what_cannot_be_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "state"
    file = StateFile(path, "t", "")
    with pytest.raises(CursorError, match=r"state: another feed uses it"):
        StateFile(path, "t", "")
    file.write()
    file.close()
    with pytest.raises(CursorError, match=r"into topic 't', and not into 'u'"):
        StateFile(path, "u", "")
    path.write_text('{"b1": "a cursor of --cursor alone"}')
    with pytest.raises(CursorError, match=r"state is no state of a feed into Kafka"):
        StateFile(path, "t", "")
    path.write_text('{"version": 99, "feed": "f", "topic": "t"}')
    with pytest.raises(CursorError, match=r"is of version 99"):
        StateFile(path, "t", "")
    with pytest.raises(CursorError, match=r"absent/state\.lock: No such file"):
        StateFile(tmp_path / "absent" / "state", "t", "")


def test_the_section_reaches_the_feed_by_its_environment() -> None:
    config = KafkaConfig(
        hosts=("k1:9092", "k2:9092"),
        client_id="c",
        sasl="PLAIN",
        user='a "user"',
        password_file=Path("/run/secrets/password"),
        tls=KafkaTlsConfig(ca=Path("/etc/ca.pem")),
    )
    assert kafka_config("", None, {KAFKA_VARIABLE: kafka_table(config)}) == config
    plain = KafkaConfig(hosts=("k1:9092",), tls=KafkaTlsConfig())
    assert kafka_config("k9:9092", None, {KAFKA_VARIABLE: kafka_table(plain)}).hosts == ("k9:9092",)
    assert kafka_config("", None, {KAFKA_VARIABLE: kafka_table(plain)}) == plain


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('[kafka]\nsasl = "PLAIN"\npassword_file = "p"', r"kafka\.user: missing, .*because kafka\.sasl is 'PLAIN'"),
        ('[kafka]\nsasl = "PLAIN"\nuser = "u"', r"kafka\.password_file: missing"),
        ('[kafka]\nuser = "u"', r"kafka\.sasl: missing"),
        ('[kafka.tls]\ncert = "c"', r"kafka\.tls\.key"),
        ('[kafka]\nhosts = ["k1"]', r"kafka\.hosts\[0\]: 'k1' is not valid"),
        ('[kafka]\nsasl = "GSSAPI"', r"kafka\.sasl: 'GSSAPI' is not valid"),
        ('[feed]\ntopic = ".."', r"feed\.topic: '\.\.' is not valid"),
        ('[feed]\ntopic = "t"\n[plugins]\nfeed = true', r"kafka\.hosts: missing"),
        ('[feed]\ntopic = "t"\nout = "o"\n[kafka]\nhosts = ["k:1"]\n[plugins]\nfeed = true', r"feed\.topic: 't'"),
    ],
)
def test_what_contradicts_is_refused(toml: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(toml)


def test_no_hosts_at_all() -> None:
    with pytest.raises(ConfigError, match=r"--kafka: kafka\.hosts: missing"):
        kafka_config("", None)


def test_partitions_are_those_of_kafkas_own_clients() -> None:
    """Values of murmur2 as the Java client's tests have them."""
    assert [partition_of(key, 1000) for key in (b"21", b"foobar")] == [
        (-973932308 & 0x7FFFFFFF) % 1000,
        (-790332482 & 0x7FFFFFFF) % 1000,
    ]
