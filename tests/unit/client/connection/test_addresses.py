"""Addresses of brokers: what is none is named."""

from __future__ import annotations

import pytest

from understudy.client.connection.core.addresses import brokers_of, listed
from understudy.client.connection.errors import ArgumentError


def test_each_host_gets_an_address() -> None:
    assert listed(["amqp://me:word@b1,b2:5673/v", "amqp://[::1]:5672"]) == [
        "amqp://me:word@b1/v",
        "amqp://me:word@b2:5673/v",
        "amqp://[::1]:5672/",
    ]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("amqp://b1:soon/", "amqp://b1:soon/"),
        ("amqp://b1,b2:70000/", "amqp://b2:70000/"),
        ("amqp://b1,[::1]:5672/", "an IPv6 address needs an address of its own"),
        ("zookeeper://[::1/group", "zookeeper://[::1/group"),
        ("http://b1/", "http://b1/"),
        ("amqp://", "amqp://host:port/"),
    ],
)
def test_what_is_no_address_is_named(address: str, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        brokers_of(address)
    assert words in str(caught.value)
