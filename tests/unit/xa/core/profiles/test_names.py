"""Xids, profiles and jobs."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.xa.core.errors import ConfigError
from understudy.xa.core.profiles.job import JOB_VARIABLE, MAX_JOB, checked_job, default_job
from understudy.xa.core.profiles.profile import Profile, profile_of
from understudy.xa.core.profiles.servers import DEFAULT_ADDRESS, NO_LOGIN, Login
from understudy.xa.core.xid import (
    EMPTY_ID,
    FORMAT_ID,
    MAX_ID_OCTETS,
    NO_FORMAT,
    Xid,
    branch_of,
    global_id,
    job_digits,
    printable,
)
from understudy.xa.manager import PROFILE_VARIABLE, TransactionManager, read_profile

ADDRESS = 'address = "127.0.0.1:5680"'
FILE = """
[[state_servers]]
id = "main"
address = "127.0.0.1:5680"

[[profiles]]
name = "shop"
state_server = "main"

[[profiles.resource_managers]]
name = "bank"
kind = "postgresql"
host = "127.0.0.1"
database = "bank"
password = "tiger"

[[profiles.resource_managers]]
name = "queues"
kind = "amqp"
addresses = ["127.0.0.1:5672"]
dynamic = true

[[profiles]]
name = "other"
state_server = "main"

[[profiles.resource_managers]]
name = "bank"
kind = "scripted"
"""


def profile(text: str = FILE, name: str = "shop") -> Profile:
    return profile_of(text, name, "xa.toml")


def test_global_ids_are_64_characters_and_differ() -> None:
    made = {global_id(uuid.uuid1().bytes, uuid.uuid4().bytes) for _ in range(1000)}
    assert len(made) == 1000
    assert {len(gid) for gid in made} == {64}


@given(st.uuids(), st.uuids(), st.from_regex(r"[A-Za-z0-9_-]{1,31}", fullmatch=True), st.text(min_size=1))
def test_branches_are_printable_and_fit(first: uuid.UUID, second: uuid.UUID, resource: str, job: str) -> None:
    xid = branch_of(global_id(first.bytes, second.bytes), resource, job)
    assert xid.is_ours
    assert xid.format_id == FORMAT_ID < 1 << 31
    for octets in (xid.global_id, xid.branch_id):
        assert 1 <= len(octets) <= MAX_ID_OCTETS
        assert all(0x21 <= octet <= 0x7E for octet in octets)
    assert xid.job_digits == job_digits(job)


@given(st.binary(min_size=1, max_size=64))
def test_ids_of_other_programs_are_shown_in_printable_ascii(octets: bytes) -> None:
    shown = printable(octets)
    assert all("!" <= character <= "~" for character in shown)
    assert str(Xid(1, octets, octets)) == f"1:{shown}:{shown}"
    from urllib.parse import unquote_to_bytes

    assert Xid(1, octets, b"").gid == shown != EMPTY_ID
    assert unquote_to_bytes(shown) == octets


def test_an_empty_global_id_has_a_name() -> None:
    for format_id in (NO_FORMAT, 1):
        xid = Xid(format_id, b"", b"")
        assert xid.gid == EMPTY_ID
        assert EMPTY_ID in str(xid)


def test_a_profile_has_its_resource_managers_in_order_with_defaults() -> None:
    shop = profile()
    assert (shop.name, shop.state_server) == ("shop", "127.0.0.1:5680")
    assert [(one.name, one.kind, one.dynamic) for one in shop.resources] == [
        ("bank", "postgresql", False),
        ("queues", "amqp", True),
    ]
    assert shop.resource("bank").options["port"] == 5432
    assert "tiger" not in repr(shop)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            'kind = "postgresql"',
            'kind = "postgres"',
            r"bank\): kind 'postgres' is not known .did you mean 'postgresql'",
        ),
        ('state_server = "main"', 'state_server = "mian"', "'mian' is not there .did you mean 'main'"),
        ('state_server = "main"', 'state_server = ["main", "main"]', "must be the id of one state server"),
        ('host = "127.0.0.1"', "", "needs the key 'host'"),
        ('host = "127.0.0.1"', "host = 7", "host must be a str, and is 7"),
        ('database = "bank"', 'databse = "bank"', "key 'databse' is not known .did you mean 'database'"),
        ('name = "queues"', 'name = "bank"', "two resource managers have the name 'bank'"),
        ('name = "queues"', 'name = "a.b"', "name 'a.b' is not 1 to 31"),
        ('["127.0.0.1:5672"]', '["127.0.0.1"]', "address '127.0.0.1' is neither host:port"),
        ('["127.0.0.1:5672"]', "[]", "addresses must be a list"),
        ("dynamic = true", 'dynamic = "yes"', "dynamic must be true or false"),
        ("dynamic = true", 'form = "smoke"', "form 'smoke' is neither"),
        ('name = "other"', 'name = "shop"', "two profiles have the name 'shop'"),
        ('address = "127.0.0.1:5680"', 'address = "5680"', "address '5680' is neither host:port nor unix:/path"),
        ("[[profiles]]", "[profile]\n[[profiles]]", "'profile' is not known .did you mean 'profiles'"),
        ('id = "main"', 'id = "main"\nprofile = "shop"', "key 'profile' is not known"),
        (ADDRESS, 'address = "unix:state"', "address 'unix:state' is neither host:port nor unix:/path"),
        (ADDRESS, ADDRESS + '\nsecret_file = ""', "the key 'secret_file' must be a text"),
        (ADDRESS, ADDRESS + '\nsecret = "x"', "'secret' is not known"),
        (ADDRESS, ADDRESS + "\ntls = 1", "tls must be true or false, and is 1"),
        (ADDRESS, ADDRESS + '\ntls_ca = "ca.pem"', "tls_ca needs tls = true"),
        (ADDRESS, ADDRESS + '\ntls = true\ntls_key = "k"', "tls_cert and tls_key belong together"),
        (ADDRESS, "tls = true", "tls is of host:port, and unix:~/.understudy/state-server.sock has"),
        (ADDRESS, "addresses = []", "state server 1 .main.: addresses must be a list of texts, and is"),
        (ADDRESS, 'addresses = ["a:1", "a:1"]', "an address is there twice: a:1, a:1"),
        (ADDRESS, 'addresses = ["a:1,b:2"]', "address 'a:1,b:2' is neither"),
        (ADDRESS, ADDRESS + '\naddresses = ["a:1"]', "address or addresses, and not both"),
        ('state_server = "main"', 'state_server = ["main", "main"]', "must be the id of one state server, and is"),
        ("[[state_servers]]", "[[", "is not TOML"),
        ('host = "127.0.0.1"', 'host = "127.0.0.1"\nport = 70000', "port must be 1 to 65535, and is 70000"),
        ('host = "127.0.0.1"', 'host = "127.0.0.1"\ntimeout_s = 0', "timeout_s must be 1 to 3600, and is 0"),
        ("dynamic = true", 'tls_ca = "ca.pem"', "tls_ca needs tls = true"),
        ("dynamic = true", 'tls = true\ntls_key = "key.pem"', "tls_cert and tls_key belong together"),
    ],
)
def test_what_cannot_be_used_is_named(old: str, new: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as raised:
        profile(FILE.replace(old, new, 1))
    assert str(raised.value).startswith("xa.toml")


def test_a_state_server_may_have_several_addresses() -> None:
    two = profile(FILE.replace(ADDRESS, 'addresses = ["a:1", "unix:/b"]', 1))
    assert two.state_server == "a:1,unix:/b"
    assert two.fingerprint == profile().fingerprint


def test_a_state_server_without_address_is_that_of_this_user() -> None:
    there = profile(FILE.replace(ADDRESS, "", 1))
    assert (there.state_server, there.login) == (DEFAULT_ADDRESS, NO_LOGIN)
    more = 'secret_file = "s"\ntls = true\ntls_ca = "a"\ntls_cert = "c"\ntls_key = "k"'
    login = profile(FILE.replace(ADDRESS, f"{ADDRESS}\n{more}", 1)).login
    assert login == Login(secret_file="s", tls=True, tls_ca="a", tls_cert="c", tls_key="k")


def test_the_profile_must_be_named_if_there_are_several() -> None:
    for name in ("", "shp"):
        with pytest.raises(ConfigError, match="it has 'shop', 'other'"):
            profile(name=name)
    only = FILE[: FILE.index('[[profiles]]\nname = "other"')]
    assert profile(only, "").name == "shop"


def test_a_resource_manager_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="profile 'shop' has no resource manager 'bnk'; it has 'bank', 'queues'"):
        profile().resource("bnk")


def test_passwords_are_no_part_of_the_fingerprint_and_servers_are() -> None:
    first = profile()
    assert len(first.fingerprint) == 32
    assert profile(FILE.replace("secret", "other")).fingerprint == first.fingerprint
    for old, new in (('"bank"\npassword', '"bank2"\npassword'), (":5672", ":5673"), ('name = "queues"', 'name = "q"')):
        assert profile(FILE.replace(old, new, 1)).fingerprint != first.fingerprint


def test_the_default_job_is_fixed_by_host_profile_and_resource_managers() -> None:
    shop = profile()
    job = default_job(shop, address="10.0.0.7", host_id="h1")
    assert job == "10.0.0.7/7a10e98c63b5a4a012f51ee603c62af1/shop"  # a golden vector: it must never change
    assert default_job(profile(FILE.replace("secret", "new")), address="10.0.0.7", host_id="h1") == job
    others = {
        default_job(shop, address="10.0.0.8", host_id="h1"),
        default_job(shop, address="10.0.0.7", host_id="h2"),
        default_job(profile(FILE.replace(":5672", ":5673")), address="10.0.0.7", host_id="h1"),
        default_job(profile(FILE.replace(":5680", ":5681")), address="10.0.0.7", host_id="h1"),
    }
    assert len(others) == 4
    assert job not in others
    assert checked_job(job, "job") == job


@pytest.mark.parametrize("job", ["", " ", "a b", "ü", "a\n", "x" * (MAX_JOB + 1)])
def test_a_job_that_cannot_be_one(job: str) -> None:
    with pytest.raises(ConfigError, match="UNDERSTUDY_JOB: job "):
        checked_job(job, "UNDERSTUDY_JOB")


def test_the_environment_names_job_and_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the program does."""
    path = tmp_path / "xa.toml"
    path.write_text(FILE)
    monkeypatch.delenv(JOB_VARIABLE, raising=False)
    monkeypatch.setenv(PROFILE_VARIABLE, "other")
    assert TransactionManager.from_file(path).profile.name == "other"
    manager = TransactionManager.from_file(path, "shop")
    assert (manager.profile.name, manager.job.rpartition("/")[2]) == ("shop", "shop")
    monkeypatch.setenv(JOB_VARIABLE, "payments")
    assert TransactionManager.from_file(path).job == "payments"
    assert TransactionManager.from_file(path, job="other").job == "other"
    monkeypatch.setenv(JOB_VARIABLE, "a b")
    with pytest.raises(ConfigError, match="UNDERSTUDY_JOB: job 'a b'"):
        TransactionManager.from_file(path)


def test_a_link_to_the_file_is_the_same_job(tmp_path: Path) -> None:
    (tmp_path / "xa.toml").write_text(FILE)
    (tmp_path / "link.toml").symlink_to("xa.toml")
    jobs = {
        default_job(read_profile(tmp_path / name, "shop"), address="a", host_id="h")
        for name in ("xa.toml", "link.toml")
    }
    assert len(jobs) == 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml cannot be read"):
        read_profile(tmp_path / "missing.toml")
