"""Addresses of brokers: what is none is named."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.client.connection.core.addresses import (
    ListedBrokers,
    ZooKeeperGroup,
    brokers_of,
    listed,
    named,
    with_option,
)
from understudy.client.connection.errors import ArgumentError


def test_each_host_gets_an_address() -> None:
    assert listed(["amqp://me:word@b1,b2:5673/v", "amqp://[::1]:5672"]) == [
        "amqp://me:word@b1/v",
        "amqp://me:word@b2:5673/v",
        "amqp://[::1]:5672/",
    ]


def test_addresses_of_brokers_and_of_groups_are_read() -> None:
    assert brokers_of("amqp://me:word@b1,b2:5673/v") == ListedBrokers(
        ("amqp://me:word@b1/v", "amqp://me:word@b2:5673/v")
    )
    assert brokers_of(["amqp://b1", "amqps://b2/"]) == ListedBrokers(("amqp://b1/", "amqps://b2/"))
    group = brokers_of("zookeeper://me:word@z1,z2:2181/shop?chroot=/production&vhost=a/b&tls=yes")
    assert group == ZooKeeperGroup(
        hosts="z1,z2:2181/production", group="shop", login="me:word", vhost="a%2Fb", scheme="amqps"
    )
    assert group.url_of("b1:5671") == "amqps://me:word@b1:5671/a%2Fb"
    assert brokers_of("zookeeper://z1") == ZooKeeperGroup(hosts="z1")
    assert with_option("amqp://b1/?a=1", "heartbeat", "10") == "amqp://b1/?a=1&heartbeat=10"
    assert with_option("amqp://b1/?heartbeat=3", "heartbeat", "10") == "amqp://b1/?heartbeat=3"
    assert named("amqp://me:word@b1:5/") == "b1:5"


GROUP = "a group is zookeeper://host1,host2:2181/group"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("amqp://b1:soon/", "amqp://b1:soon/"),
        ("amqp://b1,b2:70000/", "amqp://b2:70000/"),
        ("amqp://b1,[::1]:5672/", "an IPv6 address needs an address of its own"),
        ("zookeeper://[::1/group", "zookeeper://[::1/group"),
        ("b1", "'b1': an address of brokers is amqp://host:port/"),
        ("http://b1/", "'http://b1/': an address of brokers is amqp://host:port/"),
        ("amqp://", "'amqp://': an address of brokers is amqp://host:port/"),
        ("amqp:///", "'amqp:///': an address of brokers is amqp://host:port/"),
        ([], "no address is given"),
        ("amqp://,/", "no address is given"),
        ("zookeeper:///g", f"'zookeeper:///g': {GROUP}"),
        ("zookeeper://z/a/b", f"'zookeeper://z/a/b': {GROUP}"),
        ("zookeeper://z/g?more=1", f"'zookeeper://z/g?more=1': {GROUP}"),
        ("zookeeper://z/g?chroot=x", f"'zookeeper://z/g?chroot=x': {GROUP}"),
        ("zookeeper://z/g?tls=1", "tls='1' is neither yes nor no"),
        (["zookeeper://z/g", "amqp://b1/"], "'zookeeper://z/g' stands beside other addresses"),
    ],
)
def test_what_is_no_address_is_named(address: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        brokers_of(address)
    assert words in str(caught.value)
