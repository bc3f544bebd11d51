"""Users that change while clients are connected: new rights, new passwords, and users that are gone."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.unit.core.clients.test_carrying import HEADER
from tests.unit.server.sockets.test_carried_client import Driver, Transport, arrives, said
from understudy.broker.config import Config, UserConfig
from understudy.broker.core.clients.carrier_header import encode_header
from understudy.broker.errors import AccessRefusedError, UnderstudyError
from understudy.broker.security import Permissions, UserDirectory, hash_password
from understudy.broker.server.process.broker_server import BrokerServer
from understudy.broker.server.turn.node_driver import NodeDriver

pytestmark = pytest.mark.asyncio


def users(password: str = "old", read: str = ".*", vhost: str = "/", *, others: bool = True) -> UserDirectory:
    """Ann, and Bob unless there are no others."""
    rights = {vhost: Permissions(".*", ".*", read)}
    ann = UserConfig(name="ann", password_hash=hash_password(password, b"0123456789abcdef", ln=1), vhosts=rights)
    bob = UserConfig(name="bob", vhosts={"/": Permissions(".*", ".*", ".*")})
    return UserDirectory(Config(users=(ann, bob) if others else (ann,)))


def connected(driver: Driver, name: str) -> tuple[Any, Transport]:
    transport = Transport()
    arrives(driver, encode_header(attrs.evolve(HEADER, user=name)))(transport)
    driver.end_turn()
    return transport.protocol.connection, transport


def renew(driver: Driver, directory: UserDirectory) -> None:
    NodeDriver.renew_users(driver, directory)  # type: ignore[arg-type]
    driver.end_turn()


def serving() -> Driver:
    driver = Driver()
    driver.users.renew(users())  # type: ignore[attr-defined]
    return driver


async def test_connected_clients_get_their_new_rights() -> None:
    driver = serving()
    (ann, _), (bob, _) = connected(driver, "ann"), connected(driver, "bob")
    kept = bob.user
    renew(driver, users(read="^$"))
    assert (ann.user.may("/", "read", "q"), bob.user.may("/", "read", "q")) == (False, True)
    assert bob.user == kept
    assert not ann.finished


async def test_clients_of_a_user_that_is_gone_are_closed() -> None:
    driver = serving()
    (_, ann), (_, bob) = connected(driver, "ann"), connected(driver, "bob")
    before = len(ann.written)
    renew(driver, users(others=False))
    assert said(bob)[2][:2] == (320, "CONNECTION_FORCED - user 'bob' was deleted")
    assert len(ann.written) == before


async def test_clients_of_a_user_that_may_not_be_in_the_vhost_are_closed() -> None:
    driver = serving()
    _, ann = connected(driver, "ann")
    renew(driver, users(vhost="other"))
    assert said(ann)[2][:2] == (530, "NOT_ALLOWED - access to vhost '/' refused for user 'ann'")


async def test_an_old_password_that_was_verified_meanwhile_is_refused() -> None:
    before, after = users("old"), users("new")
    attempt = before.attempt("ann", "old", peer_is_loopback=True)
    assert before.verify(attempt)
    with pytest.raises(AccessRefusedError):
        after.conclude(attempt, matches=True)
    assert after.authenticate("ann", "new", peer_is_loopback=True).name == "ann"


async def test_a_secret_is_due_for_a_new_password_alone() -> None:
    driver = serving()
    (ann, _), (bob, _) = connected(driver, "ann"), connected(driver, "bob")
    renew(driver, users(read="^$"))
    assert not ann.secret_due
    renew(driver, users("new", read="^$"))
    renew(driver, users("new"))
    assert (ann.secret_due, bob.secret_due) == (True, False)
    later, _ = connected(driver, "ann")
    assert not later.secret_due


async def test_users_of_other_virtual_hosts_wait_for_the_next_start() -> None:
    """The file is shown with the reason, until it is changed back; nothing is called in force."""
    config = Config()
    server = BrokerServer(config)
    changed = attrs.evolve(
        config,
        users=(UserConfig(name="ann", password_hash=hash_password("x", b"0123456789abcdef", ln=1)),),
        broker=attrs.evolve(config.broker, vhosts=("/", "shop")),
    )
    with pytest.raises(UnderstudyError, match=r"broker.vhosts is \['/', 'shop'\], and \['/'\] is in force"):
        server._take_users(changed)
    server._take_users(attrs.evolve(changed, users=config.users))
