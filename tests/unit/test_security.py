"""Password hashes against published vectors, the cache, permissions as RabbitMQ has them, and who may log in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from understudy.broker import security
from understudy.broker.config import Config, UserConfig, parse
from understudy.broker.errors import AccessRefusedError, NotAllowedError
from understudy.broker.security import (
    Action,
    PasswordHashError,
    Permissions,
    User,
    UserDirectory,
    VerificationCache,
    check_password_hash,
    hash_password,
    verify_password,
)

SALT = b"0123456789abcdef"
KEY = b"k" * 32


def cheap(password: str) -> str:
    """A hash at the lowest cost, so that the tests do not spend their time in scrypt."""
    return hash_password(password, SALT, ln=1)


@pytest.fixture
def scrypts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for each scrypt that was really computed."""
    calls: list[Any] = []
    real: Callable[..., bytes] = hashlib.scrypt

    def counting(*args: Any, **kwargs: Any) -> bytes:
        calls.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(hashlib, "scrypt", counting)
    return calls


# ------------------------------------------------------------------------------------------------------------ passwords


def test_rfc_7914_vector() -> None:
    """Section 12, third vector; its salt is shorter than we allow for new hashes."""
    expected = bytes.fromhex("7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2")
    salt = base64.b64encode(b"SodiumChloride").decode().rstrip("=")
    encoded = f"$scrypt$ln=14,r=8,p=1${salt}${base64.b64encode(expected).decode().rstrip('=')}"
    assert verify_password("pleaseletmein", encoded)
    assert not verify_password("pleaseletmeim", encoded)


def test_a_hash_that_passlib_made() -> None:
    """From passlib's documentation of passlib.hash.scrypt."""
    encoded = "$scrypt$ln=16,r=8,p=1$aM15713r3Xsvxbi31lqr1Q$nFNh2CVHVjNldFVKDHDlm4CbdRSCdEBsjjJxD+iCs5E"
    assert verify_password("password", encoded)


def test_hash_and_verify() -> None:
    encoded = hash_password("correct horse", SALT)
    assert encoded.startswith("$scrypt$ln=14,r=8,p=1$MDEyMzQ1Njc4OWFiY2RlZg$")
    assert encoded == hash_password("correct horse", SALT), "a function of its arguments, nothing else"
    assert encoded != hash_password("correct horse", SALT[::-1])
    assert verify_password("correct horse", encoded)
    for wrong in ("Correct horse", "correct horse ", "", "correct horse\0"):
        assert not verify_password(wrong, encoded)


@pytest.mark.parametrize("password", ["pässwörd", "漢字", "a" * 2_000, "\udcff"])
def test_any_text_is_a_password(password: str) -> None:
    assert verify_password(password, cheap(password))
    assert not verify_password(password + "x", cheap(password))


@pytest.mark.parametrize(
    ("password", "salt", "cost", "message"),
    [
        ("", SALT, {}, "empty password"),
        ("x\0", SALT, {}, "NUL"),
        ("x", b"short", {}, "salt of 5 bytes is too short"),
        ("x", SALT, {"ln": 0}, "out of range"),
        ("x", SALT, {"ln": 21}, "out of range"),
        ("x", SALT, {"p": 17}, "out of range"),
        ("x", SALT, {"ln": 20, "r": 8}, "1024 MiB"),
        ("x", SALT, {"ln": 16, "r": 1}, "do not go together"),
    ],
)
def test_what_cannot_be_hashed(password: str, salt: bytes, cost: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hash_password(password, salt, **cost)


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "guest",
        "$2b$12$abcdefghijklmnopqrstuv",
        cheap("x") + "\n",
        cheap("x") + "$",
        cheap("x").replace("ln=1,", "ln=21,"),
        cheap("x").replace("ln=1,", "ln=20,"),
        cheap("x").replace("p=1", "p=0"),
        "$scrypt$ln=1,r=8,p=1$MDEyMzQ1Njc4OWFiY2RlZg$AAAA",
        "$scrypt$ln=1,r=8,p=1$MDEyMzQ1Njc4OWFiY2RlZg$" + "A" * 41,
    ],
)
def test_a_malformed_hash_is_an_error_and_never_a_match(encoded: str) -> None:
    with pytest.raises(PasswordHashError):
        check_password_hash(encoded)
    with pytest.raises(PasswordHashError):
        verify_password("x", encoded)


def test_the_error_does_not_show_the_hash() -> None:
    with pytest.raises(PasswordHashError) as caught:
        check_password_hash("$scrypt$ln=99,r=8,p=1$topsecret$topsecret")
    assert "topsecret" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------------------- cache


def test_a_reconnect_storm_costs_one_scrypt_each_for_right_and_wrong(scrypts: list[Any]) -> None:
    encoded, cache = cheap("right"), VerificationCache(KEY)
    scrypts.clear()
    for _ in range(100):
        assert verify_password("right", encoded, cache)
        assert not verify_password("wrong", encoded, cache)
    assert len(scrypts) == 2


def test_a_changed_hash_is_not_answered_from_the_cache() -> None:
    cache = VerificationCache(KEY)
    assert verify_password("old", cheap("old"), cache)
    assert not verify_password("old", cheap("new"), cache)


def test_the_cache_holds_no_password_and_depends_on_its_key() -> None:
    one, other = VerificationCache(KEY), VerificationCache(b"o" * 32)
    for cache in (one, other):
        cache.put("hunter2hunter2", "hash", answer=True)
    (digest,) = one._right
    assert b"hunter2" not in digest
    assert one._right != other._right


def test_the_cache_is_bounded() -> None:
    cache = VerificationCache(KEY, limit=10)
    for number in range(1_000):
        cache.put(str(number), "hash", answer=False)
        assert len(cache) <= 10
    assert cache.get("999", "hash") is False
    assert cache.get("0", "hash") is None


def test_guesses_do_not_make_it_forget_who_has_logged_in() -> None:
    cache = VerificationCache(KEY, limit=10)
    cache.put("right", "hash", answer=True)
    for number in range(1_000):
        cache.put(str(number), "hash", answer=False)
    assert cache.get("right", "hash") is True


@pytest.mark.parametrize("size", [0, 15, 65])
def test_a_cache_key_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"cache key of {size} bytes"):
        VerificationCache(b"x" * size)


# ---------------------------------------------------------------------------------------------------------- permissions


@pytest.mark.parametrize(
    ("pattern", "resource", "allowed"),
    [
        (".*", "anything", True),
        (".*", "", True),
        ("", "anything", False),
        ("", "", False),
        ("^$", "", False),  # the default exchange is called amq.default, as in RabbitMQ
        ("^amq\\.default$", "", True),
        ("^orders", "orders.new", True),
        ("^orders", "old.orders", False),
        ("orders", "old.orders", True),  # searched for, not anchored
        ("^a$|^b$", "b", True),
        ("^a$|^b$", "ab", False),
    ],
)
def test_patterns(pattern: str, resource: str, allowed: bool) -> None:
    permissions = Permissions(write=pattern)
    for _ in range(2):  # the second answer comes from the cache
        assert permissions.allow("write", resource) is allowed
    assert not permissions.allow("read", resource)
    assert not permissions.allow("configure", resource)


def test_remembered_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MAX_CACHED_DECISIONS", 8)
    permissions = Permissions(read="^amq\\.gen-")
    for number in range(100):
        assert permissions.allow("read", f"amq.gen-{number}")
        assert len(permissions._decisions["read"].known) <= 8


def test_permissions_are_compared_by_their_patterns() -> None:
    asked = Permissions("a", "b", "c")
    asked.allow("read", "x")
    assert asked == Permissions("a", "b", "c")
    assert asked != Permissions("a", "b", "d")


def test_user_may_and_require() -> None:
    permissions = {"/": Permissions(configure="^ann\\.", write=".*", read="^ann\\.")}
    user = User(name="ann", permissions=permissions, vhosts=frozenset({"/", "other"}))
    assert user.may("/", "configure", "ann.q")
    assert not user.may("/", "configure", "bob.q")
    assert user.may("/", "write", "bob.q")
    assert not user.may("other", "write", "bob.q")
    assert user.may_open("/")
    assert not user.may_open("other")
    user.require_vhost("/")
    user.require("/", "read", "queue", "ann.q")
    with pytest.raises(AccessRefusedError) as caught:
        user.require("/", "read", "queue", "bob.q")
    assert (
        caught.value.reply_text == "ACCESS_REFUSED - read access to queue 'bob.q' in vhost '/' refused for user 'ann'"
    )
    with pytest.raises(NotAllowedError) as hard:
        user.require_vhost("other")
    assert hard.value.reply_text == "NOT_ALLOWED - access to vhost 'other' refused for user 'ann'"
    with pytest.raises(NotAllowedError) as hard:
        user.require_vhost("otter")
    assert hard.value.reply_text == "NOT_ALLOWED - vhost 'otter' not found"


def test_a_refused_default_exchange_has_a_name() -> None:
    user = User(name="ann", permissions={"/": Permissions()}, vhosts=frozenset({"/"}))
    with pytest.raises(AccessRefusedError, match=r"write access to exchange 'amq\.default' in vhost '/'"):
        user.require("/", "write", "exchange", "")


# ---------------------------------------------------------------------------------------------------------------- login


def directory(**passwords: str) -> UserDirectory:
    users = tuple(
        UserConfig(name=name, password_hash=cheap(password), vhosts={"/": Permissions(".*", ".*", ".*")})
        for name, password in passwords.items()
    )
    return UserDirectory(Config(users=users))


@pytest.mark.parametrize("loopback", [True, False])
def test_login(loopback: bool) -> None:
    users = directory(ann="a-pass", bob="b-pass")
    user = users.authenticate("ann", "a-pass", loopback)
    assert user.name == "ann"
    assert user.may("/", "write", "x")
    assert users.authenticate("bob", "b-pass", loopback).name == "bob"


@pytest.mark.parametrize(
    ("name", "password"), [("ann", "b-pass"), ("ann", ""), ("eve", "a-pass"), ("", ""), ("ANN", "a-pass")]
)
def test_refused_login_does_not_say_whether_the_user_exists(name: str, password: str) -> None:
    with pytest.raises(AccessRefusedError) as caught:
        directory(ann="a-pass").authenticate(name, password, peer_is_loopback=True)
    assert caught.value.reply_code == 403
    assert caught.value.text == f"login refused for user '{name}': unknown user or wrong password"


def test_an_unknown_name_costs_as_much_as_a_known_one(scrypts: list[Any]) -> None:
    users = directory(ann="a-pass")
    for name in ("ann", "eve"):
        scrypts.clear()
        with pytest.raises(AccessRefusedError):
            users.authenticate(name, f"wrong for {name}", peer_is_loopback=True)
        assert len(scrypts) == 1


def test_logins_are_cached(scrypts: list[Any]) -> None:
    users = directory(ann="a-pass")
    scrypts.clear()
    for _ in range(50):
        users.authenticate("ann", "a-pass", peer_is_loopback=True)
    assert len(scrypts) == 1


def test_guest_of_the_default_configuration() -> None:
    users = UserDirectory(Config(), cache_key=KEY)
    guest = users.authenticate("guest", "guest", peer_is_loopback=True)
    actions: tuple[Action, ...] = ("configure", "write", "read")
    assert all(guest.may("/", action, "x") for action in actions)
    with pytest.raises(AccessRefusedError):
        users.authenticate("guest", "Guest", peer_is_loopback=True)


def test_guest_comes_from_loopback_only_even_with_another_password(scrypts: list[Any]) -> None:
    users = directory(guest="better")
    scrypts.clear()
    with pytest.raises(AccessRefusedError, match="'guest' can only connect via localhost"):
        users.authenticate("guest", "better", peer_is_loopback=False)
    assert not scrypts, "the answer must not depend on the password"
    assert users.authenticate("guest", "better", peer_is_loopback=True).name == "guest"


def test_without_users_nobody_logs_in() -> None:
    with pytest.raises(AccessRefusedError):
        UserDirectory(parse("users = []")).authenticate("guest", "guest", peer_is_loopback=True)


def test_a_user_without_a_password_logs_in_by_certificate_alone() -> None:
    """An unknown password is verified against another user's hash, which proves nothing of this user."""
    tls = 'tls = { cert = "c", key = "k", ca = "a", user_from = "common_name" }'
    users = f'[[users]]\nname = "ann"\npassword_hash = "{cheap("secret")}"\n[[users]]\nname = "CN=bob"\n'
    found = UserDirectory(parse(f'[amqp]\n{tls}\n{users}[[users]]\nname = "guest"\n'))
    assert found.certified("CN=bob", False).name == "CN=bob"
    assert found.certified("ann", False).name == "ann"
    for password in ("secret", "", "other"):
        with pytest.raises(AccessRefusedError, match="unknown user or wrong password"):
            found.authenticate("CN=bob", password, True)
    with pytest.raises(AccessRefusedError, match="the certificate names 'CN=eve', and there is no such user"):
        found.certified("CN=eve", True)
    with pytest.raises(AccessRefusedError, match="can only connect via localhost"):
        found.certified("guest", False)
