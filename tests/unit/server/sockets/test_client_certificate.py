"""Names in certificates, written as RabbitMQ writes them: its users keep their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from understudy.broker.config import ClientTlsConfig
from understudy.broker.errors import AccessRefusedError
from understudy.broker.server.sockets.client_certificate import subject_of, user_of

SUBJECT = (
    (("countryName", "DE"),),
    (("organizationName", "Müller, Söhne"), ("organizationalUnitName", "a+b")),
    (("commonName", "orders"),),
)
NAMES = (("DNS", "a.example"), ("email", "o@example"), ("DNS", "b.example"), ("IP Address", "0:0:0:0:0:0:0:1\n"))


def of(*pairs: tuple[str, str], names: Any = ()) -> dict[str, Any]:
    return {"subject": tuple((pair,) for pair in pairs), "subjectAltName": names}


def rule(user_from: Any, **others: Any) -> ClientTlsConfig:
    return ClientTlsConfig(cert=Path("c"), key=Path("k"), ca=Path("a"), user_from=user_from, **others)


@pytest.mark.parametrize(
    ("certificate", "subject"),
    [
        ({"subject": SUBJECT}, r"CN=orders,O=M\C3\BCller\, S\C3\B6hne+OU=a\+b,C=DE"),
        (of(("userId", "u"), ("emailAddress", "u@x")), "EMAILADDRESS=u@x,UID=u"),
        (of(("commonName", "#a ")), r"CN=\#a\ "),
        (of(("commonName", " ")), r"CN=\ "),
        (of(("commonName", 'a\0"<>;\\~')), r"CN=a\00\"\<\>\;\\\7E"),
        (of(("1.2.3", "odd")), "1.2.3=odd"),
        (of(), ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_a_subject_is_a_distinguished_name(certificate: Any, subject: str) -> None:
    assert subject_of(certificate) == subject


@pytest.mark.parametrize(
    ("user_from", "others", "certificate", "user"),
    [
        ("distinguished_name", {}, of(("organizationName", "x"), ("commonName", "a")), "CN=a,O=x"),
        ("common_name", {}, of(("organizationName", "x"), ("commonName", "a")), "a"),
        ("common_name", {}, of(("commonName", "a"), ("commonName", "b")), "a,b"),
        ("subject_alternative_name", {}, of(names=NAMES), "a.example"),
        ("subject_alternative_name", {"san_index": 1}, of(names=NAMES), "b.example"),
        ("subject_alternative_name", {"san_type": "email"}, of(names=NAMES), "o@example"),
        ("subject_alternative_name", {"san_type": "ip"}, of(names=NAMES), "::1"),
    ],
)
def test_a_rule_says_which_name_is_the_users(user_from: str, others: Any, certificate: Any, user: str) -> None:
    assert user_of(certificate, rule(user_from, **others)) == user


@pytest.mark.parametrize(
    ("user_from", "others", "certificate", "text"),
    [
        ("distinguished_name", {}, of(), "certificate '' has no distinguished name"),
        ("common_name", {}, of(("organizationName", "x")), "certificate 'O=x' has no common name"),
        ("common_name", {}, of(("commonName", "")), "certificate 'CN=' has no common name"),
        ("common_name", {}, of(("commonName", "a" * 256)), "has a common name of 256 characters, 255 are the most"),
        (
            "subject_alternative_name",
            {"san_type": "uri", "san_index": 2},
            of(("commonName", "a"), names=NAMES),
            "certificate 'CN=a' has no subject alternative name 2 of the type uri",
        ),
        ("common_name", {}, {}, "certificate '' has no common name"),
    ],
)
def test_a_certificate_without_that_name_is_refused(user_from: str, others: Any, certificate: Any, text: str) -> None:
    refused = user_of(certificate, rule(user_from, **others))
    assert isinstance(refused, AccessRefusedError)
    assert text in refused.text
