"""Logins and permissions: password hashes, permissions, users.

Everything here is a pure function of the configuration and of what the peer says. There is no randomness: a salt, and the key of
the verification cache, are given by the caller (`understudy user hash` takes the salt from `secrets`).

Passwords are kept as scrypt hashes in the form `$scrypt$ln=14,r=8,p=1$salt$hash`, salt and hash in base64 without padding. It is
passlib's form, so hashes made by other tools work. One verification costs 16 MiB and about 50 ms of CPU. That is meant to be dear
for a thief and would be ruinous when another broker leads, and every client of the group reconnects to it at once: a
thousand connections of one application would keep the broker busy for a minute. Hence `VerificationCache`.

Permissions follow RabbitMQ: regular expressions per user and vhost, searched for (not anchored) in the resource name; an
empty one allows nothing; the default exchange is called `amq.default` there.

Sources: RFC 7914 (scrypt); RabbitMQ's access control guide.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from attrs import define, field, frozen

from understudy.broker.errors import AccessRefusedError, NotAllowedError, UnderstudyError

if TYPE_CHECKING:
    # config reads password hashes and permissions, so it imports this module.
    from understudy.broker.config import Config

__all__ = [
    "Action",
    "LoginAttempt",
    "PasswordHashError",
    "Permissions",
    "User",
    "UserDirectory",
    "VerificationCache",
    "check_password_hash",
    "hash_password",
    "verify_password",
]

Action = Literal["configure", "write", "read", "admin"]
"""configure: declare, delete; write: publish, bind to; read: consume, get, purge, bind from; admin: give commands to the broker."""

LOOPBACK_ONLY_USERS: Final = frozenset({"guest"})
"""Users whose password everybody knows; whatever the configuration says, they come from the same host only."""

DEFAULT_EXCHANGE_NAME: Final = "amq.default"
"""What permissions call the exchange whose name on the wire is empty."""

SALT_BYTES_MIN: Final = 16
MAX_CACHED_VERIFICATIONS: Final = 1_024
MAX_CACHED_DECISIONS: Final = 8_192

_HASH_BYTES: Final = 32
_MAX_SCRYPT_MEMORY_BYTES: Final = 256 * 1024 * 1024
_HASH_FORM: Final = re.compile(
    r"\$scrypt\$ln=(?P<ln>\d{1,2}),r=(?P<r>\d{1,3}),p=(?P<p>\d{1,3})"
    r"\$(?P<salt>[A-Za-z0-9+/]+)\$(?P<hash>[A-Za-z0-9+/]+)"
)


class PasswordHashError(UnderstudyError):
    """A stored hash that is not a scrypt hash of the form above. Its message never shows the hash."""


# ------------------------------------------------------------------------------------------------------------ passwords


@frozen
class _ScryptHash:
    """The parts of an encoded hash."""

    ln: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    def matches(self, password: str) -> bool:
        return hmac.compare_digest(self.digest, _scrypt(password, self.salt, self.ln, self.r, self.p, len(self.digest)))


def hash_password(password: str, salt: bytes, *, ln: int = 14, r: int = 8, p: int = 1) -> str:
    """Return the encoded scrypt hash of `password`.

    Args:
        password: not empty, without NUL; hashed as UTF-8.
        salt: at least 16 fresh random bytes, from the caller, since nothing here is random.
        ln: binary logarithm of the cost N, 1 to 20; each step doubles time and memory.
        r: block size; memory is 128 * N * r bytes, at most 256 MiB.
        p: parallelisation.

    Returns:
        `$scrypt$ln=14,r=8,p=1$salt$hash`.

    Raises:
        ValueError: an unusable password, a short salt or parameters out of range.
    """
    if not password:
        raise ValueError("an empty password cannot be hashed: nobody could log in with it")
    if "\0" in password:
        raise ValueError("a password with a NUL character cannot be hashed: nobody could log in with it")
    if len(salt) < SALT_BYTES_MIN:
        raise ValueError(f"a salt of {len(salt)} bytes is too short, expected at least {SALT_BYTES_MIN}")
    fault = _fault_of_cost(ln, r, p)
    if fault:
        raise ValueError(fault)
    digest = _scrypt(password, salt, ln, r, p, _HASH_BYTES)
    return f"$scrypt$ln={ln},r={r},p={p}${_base64(salt)}${_base64(digest)}"


def check_password_hash(encoded: str) -> None:
    """Do nothing if `encoded` is a hash that `verify_password` can use.

    Raises:
        PasswordHashError: it is not, with the reason and without the hash.
    """
    _parse(encoded)


def verify_password(password: str, encoded: str, cache: VerificationCache | None = None) -> bool:
    """Say whether `password` is the one that `encoded` was made from.

    The comparison takes the same time wherever the two differ. An empty password never matches. Neither does one with a NUL: HMAC,
    and with it scrypt, pads short keys with zeros, so "secret" and "secret" followed by NULs have the same hash.

    Args:
        password: what the peer sent.
        encoded: a hash made by `hash_password`.
        cache: asked first, and told the answer; without it every call costs a whole scrypt.

    Raises:
        PasswordHashError: `encoded` is not a scrypt hash.
    """
    stored = _parse(encoded)
    if not password or "\0" in password:
        return False
    if cache is None:
        return stored.matches(password)
    known = cache.get(password, encoded)
    if known is None:
        known = stored.matches(password)
        cache.put(password, encoded, known)
    return known


class VerificationCache:
    """Remembers the answers of `verify_password`, yes and no, without keeping any password.

    The key of an entry is a keyed BLAKE2b of hash and password together: a changed hash in the configuration finds no old answer,
    and the entries say nothing to who does not hold the key. Wrong passwords are remembered too, for a misconfigured client in a
    reconnect loop must not cost a whole scrypt each time. Full, it forgets everything: the next storm fills it again with one
    scrypt per user, and there is no order of entries to keep, so a driver may verify in a thread. The two answers are kept apart:
    there are as many right passwords as users, and somebody who guesses must not make the broker forget them.

    Args:
        key: 16 to 64 bytes, random for each process where randomness is at hand.
        limit: the greatest number of entries of each answer.
    """

    __slots__ = ("_key", "_limit", "_right", "_wrong")

    def __init__(self, key: bytes, limit: int = MAX_CACHED_VERIFICATIONS) -> None:
        if not 16 <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
            raise ValueError(f"a cache key of {len(key)} bytes, expected 16 to {hashlib.blake2b.MAX_KEY_SIZE}")
        self._key = key
        self._limit = limit
        self._right: set[bytes] = set()
        self._wrong: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._right) + len(self._wrong)

    def get(self, password: str, encoded: str) -> bool | None:
        """Return the remembered answer, None if there is none."""
        digest = self._digest(password, encoded)
        return True if digest in self._right else False if digest in self._wrong else None

    def put(self, password: str, encoded: str, answer: bool) -> None:
        answers = self._right if answer else self._wrong
        if len(answers) >= self._limit:
            answers.clear()
        answers.add(self._digest(password, encoded))

    def _digest(self, password: str, encoded: str) -> bytes:
        # An encoded hash contains no NUL, so the two parts cannot run into each other.
        return hashlib.blake2b(encoded.encode() + b"\0" + _bytes_of(password), key=self._key, digest_size=32).digest()


# ---------------------------------------------------------------------------------------------------------- permissions


def _compiled(pattern: str) -> re.Pattern[str] | None:
    return re.compile(pattern) if pattern else None


@define(eq=False)
class _Decisions:
    """The answers of one pattern, so that the hot path costs a dictionary look-up and no regular expression."""

    pattern: re.Pattern[str] | None
    known: dict[str, bool] = field(factory=dict)

    def allow(self, resource: str) -> bool:
        answer = self.known.get(resource)
        if answer is None:
            answer = self.pattern is not None and self.pattern.search(resource or DEFAULT_EXCHANGE_NAME) is not None
            if len(self.known) >= MAX_CACHED_DECISIONS:  # names come from the peer: server-named queues without end
                self.known.clear()
            self.known[resource] = answer
        return answer


@frozen
class Permissions:
    """The rights of one user in one vhost: regular expressions, searched for in the resource name.

    Args:
        configure: names of exchanges and queues that may be declared and deleted.
        write: names that may be published to, or bound as a destination queue.
        read: names that may be consumed, got, purged, or bound from.
        admin: names of commands that may be given to the broker.

    An empty pattern allows nothing, which is also the default. `^` and `$` are not implied.

    Raises:
        re.error: a pattern is no regular expression.
    """

    configure: str = ""
    write: str = ""
    read: str = ""
    admin: str = ""
    _decisions: Mapping[str, _Decisions] = field(init=False, repr=False, eq=False)

    @_decisions.default
    def _make_decisions(self) -> Mapping[str, _Decisions]:
        return {
            "configure": _Decisions(_compiled(self.configure)),
            "write": _Decisions(_compiled(self.write)),
            "read": _Decisions(_compiled(self.read)),
            "admin": _Decisions(_compiled(self.admin)),
        }

    def allow(self, action: Action, resource: str) -> bool:
        """Say whether `action` on the exchange, queue or command `resource` is allowed; "" is the default exchange."""
        return self._decisions[action].allow(resource)


# ---------------------------------------------------------------------------------------------------------------- users


def _read_only(permissions: Mapping[str, Permissions]) -> Mapping[str, Permissions]:
    return MappingProxyType(dict(permissions))


@frozen(kw_only=True)
class User:
    """Somebody who has logged in.

    Attributes:
        name: as authenticated.
        permissions: per vhost; a vhost that is not in it may not even be opened.
        monitoring: the HTTP pages may be read from other hosts.
        vhosts: those of the broker, so that one who mistypes a name is not sent to look for permissions.
    """

    name: str
    permissions: Mapping[str, Permissions] = field(converter=_read_only)
    vhosts: frozenset[str]
    monitoring: bool = False

    def may_open(self, vhost: str) -> bool:
        """Say whether connection.open to `vhost` is allowed: any permission entry for it is enough."""
        return vhost in self.permissions

    def may(self, vhost: str, action: Action, resource: str) -> bool:
        """Say whether the user may do `action` to the exchange or queue `resource` of `vhost`."""
        granted = self.permissions.get(vhost)
        return granted is not None and granted.allow(action, resource)

    def require_vhost(self, vhost: str) -> None:
        """Do nothing if connection.open to `vhost` is allowed.

        Raises:
            NotAllowedError: 530, `access to vhost '/' refused for user 'guest'`, or `vhost '/' not found`. Which of the two
                is told to who has logged in, and to nobody else.
        """
        if not self.may_open(vhost):
            if vhost not in self.vhosts:
                raise NotAllowedError.unknown_vhost(vhost)
            raise NotAllowedError.vhost_refused(vhost, self.name)

    def require(self, vhost: str, action: Action, kind: Literal["exchange", "queue", "command"], resource: str) -> None:
        """Do nothing if `may` would say yes.

        Raises:
            AccessRefusedError: 403, `write access to exchange 'x' in vhost '/' refused for user 'guest'`.
        """
        if not self.may(vhost, action, resource):
            name = resource or DEFAULT_EXCHANGE_NAME
            raise AccessRefusedError.missing_permission(self.name, action, kind, name, vhost)


@frozen
class LoginAttempt:
    """A claim of a name and a password, and the hash to verify it by; None if no user has a password."""

    name: str
    password: str = field(repr=False)
    encoded: str | None = field(repr=False)


class UserDirectory:
    """The users of a configuration.

    `verify`, and with it `authenticate`, costs a whole scrypt the first time it sees a password: about 50 ms during which an
    event loop would stand. It may be called in a thread; nothing of it is shared but the cache, whose operations are single steps
    on a set. Who does that asks `attempt` and `known` before, and `conclude` after it.

    Args:
        config: its `users`.
        cache_key: 16 to 64 random bytes for the verification cache. Without one a key is made from the stored hashes, whose
            salts make it differ between deployments.
    """

    def __init__(self, config: Config, cache_key: bytes | None = None) -> None:
        self._hashes = {user.name: user.password_hash for user in config.users if user.password_hash is not None}
        vhosts = frozenset(config.broker.vhosts)
        self._users = {
            user.name: User(name=user.name, permissions=user.vhosts, vhosts=vhosts, monitoring=user.monitoring)
            for user in config.users
        }
        self._cache = VerificationCache(cache_key if cache_key is not None else self._derived_key())
        # What an unknown name is checked against, so that it takes as long as a known one.
        self._decoy = next(iter(self._hashes.values()), None)

    def authenticate(self, name: str, password: str, peer_is_loopback: bool) -> User:
        """Return the user that `name` and `password` prove.

        Args:
            name: as the peer sent it.
            password: as the peer sent it.
            peer_is_loopback: the connection comes from this host over a loopback address.

        Raises:
            AccessRefusedError: 403. Unknown names and wrong passwords give the same text in about the same time. A user of
                `LOOPBACK_ONLY_USERS` from elsewhere is told so, before the password is looked at.
        """
        attempt = self.attempt(name, password, peer_is_loopback)
        return self.conclude(attempt, self.verify(attempt))

    def attempt(self, name: str, password: str, peer_is_loopback: bool) -> LoginAttempt:
        """The attempt that has to be verified.

        Raises:
            AccessRefusedError: see `authenticate`.
        """
        self._check_place(name, peer_is_loopback)
        return LoginAttempt(name, password, self._hashes.get(name, self._decoy))

    def known(self, attempt: LoginAttempt) -> bool | None:
        """True if the password is right, where that costs nothing to say; None if it has to be verified."""
        if attempt.encoded is None or not attempt.password:
            return False
        return self._cache.get(attempt.password, attempt.encoded)

    def verify(self, attempt: LoginAttempt) -> bool:
        """True if the password is right, of whichever user."""
        return attempt.encoded is not None and verify_password(attempt.password, attempt.encoded, self._cache)

    def conclude(self, attempt: LoginAttempt, matches: bool) -> User:
        """The user that this proves.

        Raises:
            AccessRefusedError: see `authenticate`.
        """
        # Of a user without a password the decoy was verified, and of one that has changed meanwhile another hash.
        if not matches or self._hashes.get(attempt.name) != attempt.encoded:
            raise AccessRefusedError(f"login refused for user '{attempt.name}': unknown user or wrong password")
        return self._users[attempt.name]

    def has_password_of(self, name: str, other: UserDirectory) -> bool:
        """True if the user has the same password hash in both directories, or none in both."""
        return self._hashes.get(name) == other._hashes.get(name)

    def named(self, name: str) -> User | None:
        """The user of that name, if there is one."""
        return self._users.get(name)

    def certified(self, name: str, peer_is_loopback: bool) -> User:
        """The user that a verified certificate names.

        Raises:
            AccessRefusedError: 403: there is no such user, or it may not come from there.
        """
        self._check_place(name, peer_is_loopback)
        user = self._users.get(name)
        if user is None:
            raise AccessRefusedError(f"login refused: the certificate names '{name}', and there is no such user")
        return user

    def vouched(self, name: str, peer_is_loopback: bool) -> User:
        """The user that another broker of the group has authenticated; its configuration should have the same users.

        Raises:
            AccessRefusedError: 403: there is no such user here, or it may not come from there.
        """
        self._check_place(name, peer_is_loopback)
        user = self._users.get(name)
        if user is None:
            raise AccessRefusedError(f"login refused: the broker that leads has no user '{name}'")
        return user

    @staticmethod
    def _check_place(name: str, peer_is_loopback: bool) -> None:
        if name in LOOPBACK_ONLY_USERS and not peer_is_loopback:
            raise AccessRefusedError(f"login refused: user '{name}' can only connect via localhost")

    def _derived_key(self) -> bytes:
        digest = hashlib.blake2b(b"understudy verification cache", digest_size=32)
        for encoded in self._hashes.values():
            digest.update(encoded.encode() + b"\0")
        return digest.digest()


# ---------------------------------------------------------------------------------------------------------------- parts


def _parse(encoded: str) -> _ScryptHash:
    match = _HASH_FORM.fullmatch(encoded)
    if match is None:
        raise PasswordHashError("a password hash has the form $scrypt$ln=14,r=8,p=1$salt$hash (`understudy user hash`)")
    ln, r, p = int(match["ln"]), int(match["r"]), int(match["p"])
    fault = _fault_of_cost(ln, r, p)
    if fault:
        raise PasswordHashError(fault)
    try:
        salt, digest = _unbase64(match["salt"]), _unbase64(match["hash"])
    except binascii.Error as error:
        raise PasswordHashError(f"salt or hash of a password hash is not base64: {error}") from error
    if len(digest) < SALT_BYTES_MIN:
        # A digest of a few bytes would let many passwords in.
        raise PasswordHashError(
            f"a password hash of {len(digest)} bytes is too short, expected at least {SALT_BYTES_MIN}"
        )
    return _ScryptHash(ln, r, p, salt, digest)


def _fault_of_cost(ln: int, r: int, p: int) -> str:
    """Say what is wrong with the cost parameters of scrypt, "" if nothing is."""
    if not (1 <= ln <= 20 and 1 <= r <= 32 and 1 <= p <= 16):
        return f"scrypt parameters ln={ln},r={r},p={p} are out of range: ln 1 to 20, r 1 to 32, p 1 to 16"
    if ln >= 16 * r:  # RFC 7914 section 6: N < 2^(128 * r / 8)
        return f"scrypt parameters ln={ln},r={r} do not go together: ln must be below 16 * r"
    if 128 * r << ln > _MAX_SCRYPT_MEMORY_BYTES:
        return f"scrypt parameters ln={ln},r={r},p={p} need {128 * r << ln >> 20} MiB, at most 256 are allowed"
    return ""


def _scrypt(password: str, salt: bytes, ln: int, r: int, p: int, size: int) -> bytes:
    # OpenSSL counts a little more than 128 * N * r towards its limit.
    limit = _MAX_SCRYPT_MEMORY_BYTES + 1024 * 1024
    return hashlib.scrypt(_bytes_of(password), salt=salt, n=1 << ln, r=r, p=p, maxmem=limit, dklen=size)


def _bytes_of(password: str) -> bytes:
    """UTF-8; what a peer sent that was not UTF-8 arrives as lone surrogates and simply never matches."""
    return password.encode("utf-8", "surrogatepass")


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii").rstrip("=")


def _unbase64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
