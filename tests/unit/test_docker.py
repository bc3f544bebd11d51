"""docker-compose.yml and the Dockerfiles, as far as they can be judged without an engine; `scripts/check_compose` runs them."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from understudy.broker.config import Config, load
from understudy.ha.trial.edge.zookeeper_servers import SHA256, VERSION

ROOT = Path(__file__).parents[2]
DOCKERFILES = [ROOT / "Dockerfile", *sorted(ROOT.glob("docker/*/Dockerfile"))]
BROKERS = ("b1", "b2", "b3")
STORES = ("zk1", "zk2", "zk3")
FEEDS = ("feed-b1", "feed-b2", "feed-b3")
UNREACHED = {*FEEDS, "kafka-topics"}
"""Nobody connects to these: they need no name, no address, and nobody asks whether they are healthy."""
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "docker-compose.yml").read_text()


@pytest.fixture(scope="module")
def compose(text: str) -> dict[str, Any]:
    """As docker-compose reads it when no variable is set."""
    read: dict[str, Any] = yaml.safe_load(VARIABLE.sub(r"\2", text))
    return read


def address_of(service: dict[str, Any]) -> str:
    return str(service["networks"]["group"]["ipv4_address"])


def config_of(compose: dict[str, Any], broker: str) -> Config:
    return load(ROOT / "docker" / "understudy.toml", compose["services"][broker]["environment"])


def test_no_key_that_one_of_the_two_programs_refuses(compose: dict[str, Any]) -> None:
    assert not {"version", "name", "include"} & compose.keys()


def test_each_image_is_pinned_replaceable_and_built_here(compose: dict[str, Any], text: str) -> None:
    images = re.findall(r"^ +image: (.*)$", text, re.MULTILINE)
    assert all(re.fullmatch(r"\$\{[A-Z]+_IMAGE:-understudy(-[a-z]+)?:\d+(\.\d+)+\}", image) for image in images)
    for service in compose["services"].values():
        build = service["build"]
        assert (ROOT / build["context"] / build.get("dockerfile", "Dockerfile")).is_file()
        assert build["args"] == {"BASE_IMAGE": "debian:bookworm-slim"}


def test_each_service_has_an_address_of_its_own(compose: dict[str, Any]) -> None:
    subnet = ipaddress.ip_network(compose["networks"]["group"]["ipam"]["config"][0]["subnet"])
    assert {name for name, service in compose["services"].items() if service["networks"] == ["group"]} == UNREACHED
    addresses = [address_of(service) for name, service in compose["services"].items() if name not in UNREACHED]
    assert len(set(addresses)) == len(addresses)
    assert all(ipaddress.ip_address(address) in subnet for address in addresses)


def test_each_service_that_stays_is_watched_and_comes_back(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["init"] is True
        if name not in {"stress", "kafka-topics"}:
            assert service["restart"] == "unless-stopped"
        if name not in UNREACHED:
            assert service["hostname"] == name
        if name not in {"stress", *UNREACHED}:
            assert service["healthcheck"]["test"][0] == "CMD"
    assert compose["services"]["kafka-topics"]["restart"] == "on-failure"  # it makes the topics and ends


def test_volumes_and_mounted_files_are_there(compose: dict[str, Any]) -> None:
    used = set()
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).is_file()
            else:
                used.add(source)
    assert used == set(compose["volumes"])


def test_a_default_profile_is_three_servers_and_three_brokers(compose: dict[str, Any]) -> None:
    default = {name for name, service in compose["services"].items() if not service.get("profiles")}
    assert default == {*BROKERS, *STORES}


def test_published_ports_are_on_loopback_and_different(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.rsplit(":", 1)[0] for port in ports}) == len(ports)


@pytest.mark.parametrize("broker", BROKERS)
def test_a_brokers_configuration(compose: dict[str, Any], broker: str) -> None:
    services = compose["services"]
    config = config_of(compose, broker)
    address = address_of(services[broker])
    assert config.broker.id == broker
    assert {config.amqp.host, config.http.host, config.link.host} == {address}
    assert config.link.secret
    assert not config.link.unix
    assert dict(config.plugins) == {"ha": True, "feed": True}
    coordination = config.coordination
    assert coordination.kind == "zookeeper"
    assert coordination.hosts == tuple(f"{address_of(services[store])}:2181" for store in STORES)
    tick_s = int(services["zk1"]["environment"]["ZOO_TICK_TIME"]) / 1_000
    assert 2 * tick_s <= coordination.session_s <= 20 * tick_s
    volumes = {Path(volume.split(":")[1]) for volume in services[broker]["volumes"]}
    assert config.feed.out is not None
    assert {config.broker.data.parent, config.feed.out.parent} <= volumes
    assert float(services[broker]["stop_grace_period"].rstrip("s")) > config.shutdown.grace_s


def test_one_broker_founds(compose: dict[str, Any]) -> None:
    assert [broker for broker in BROKERS if config_of(compose, broker).ha.found] == ["b1"]


def test_the_servers_agree_on_the_ensemble(compose: dict[str, Any]) -> None:
    services = compose["services"]
    ensemble = {services[store]["environment"]["ZOO_SERVERS"] for store in STORES}
    assert ensemble == {
        " ".join(f"server.{at}={address_of(services[store])}:2888:3888;2181" for at, store in enumerate(STORES, 1))
    }
    assert [services[store]["environment"]["ZOO_MY_ID"] for store in STORES] == ["1", "2", "3"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: str(path.parent.name))
def test_a_dockerfile_needs_no_buildkit_and_ends_without_root(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"^# *syntax=|--mount|--chmod|--link|<<", text, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE_IMAGE}"}
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] not in {"root", "0"}


def test_the_build_gets_every_room(compose: dict[str, Any]) -> None:
    kept = set(re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    rooms = {path.name for path in (ROOT / "understudy").iterdir() if path.is_symlink() and path.exists()}
    assert rooms <= kept
    assert all((ROOT / path).exists() for path in kept)


def test_the_builds_of_docker_get_what_they_copy_and_no_secret() -> None:
    lines = (ROOT / "docker" / ".dockerignore").read_text().splitlines()
    assert [line for line in lines if not line.startswith(("#", "!"))] == ["*"]
    kept = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source.partition("/")[0]
        for path in ROOT.glob("docker/*/Dockerfile")
        for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", path.read_text(), re.MULTILINE)
        for source in sources.split()
    }
    assert kept == copied == {"fetch-jars", "kafka", "zookeeper"}


@pytest.mark.parametrize("image", ["zookeeper", "kafka"])
def test_jars_are_pinned_by_their_hashes(compose: dict[str, Any], image: str) -> None:
    lines = (ROOT / "docker" / image / "jars.sha256").read_text().splitlines()
    matches = [re.fullmatch(r"[0-9a-f]{64}  ([\w.-]+/)+([\w.-]+)\.jar", line) for line in lines]
    assert all(matches)
    names = [match[2] for match in matches if match]
    assert len(set(names)) == len(names)
    version = compose["services"]["zk1" if image == "zookeeper" else "kafka"]["image"].partition(":")[2]
    assert {"zookeeper": f"zookeeper-{version}", "kafka": f"kafka_2.13-{version}"}[image] in names


def test_servers_on_the_host_are_those_of_the_image(compose: dict[str, Any]) -> None:
    """One version of ZooKeeper, and the same jars, but for the logger's and for annotations that no server loads."""
    image = [line.split() for line in (ROOT / "docker" / "zookeeper" / "jars.sha256").read_text().splitlines()]
    in_image = {(path.rpartition("/")[2], digest) for digest, path in image}
    on_host = {(name, digest) for digest, name in map(str.split, SHA256.splitlines())}
    assert compose["services"]["zk1"]["image"].endswith(f":{VERSION}")
    assert {name.rstrip(".-0123456789jar") for name, _ in in_image ^ on_host} == {
        "audience-annotations",
        "logback-classic",
        "logback-core",
        "slf4j-simple",
    }
