"""The names in a client's certificate: its subject, and the user that SASL EXTERNAL logs in.

Python's ``ssl`` gives a verified certificate as a dictionary. Its names are written as RabbitMQ writes them, so that the users of a
RabbitMQ keep theirs: a distinguished name by RFC 4514, the part that stands last in the certificate first.

Source: RabbitMQ 4.3, ``rabbit_cert_info`` and ``rabbit_ssl:peer_cert_auth_name``; RFC 4514 sections 2.1 to 2.4.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from understudy.broker.core.clients.carrier_header import MAX_NAME
from understudy.broker.errors import AccessRefusedError

if TYPE_CHECKING:
    from understudy.broker.config import ClientTlsConfig

_SHORT: Final = {
    "surname": "SN",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "title": "TITLE",
    "countryName": "C",
    "serialNumber": "SERIALNUMBER",
    "pseudonym": "PSEUDONYM",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""Long names of OpenSSL and what RabbitMQ calls them; others stand as OpenSSL names them."""
_SAN: Final = {"dns": "DNS", "email": "email", "ip": "IP Address", "uri": "URI"}
_ESCAPED: Final = frozenset('"+,;<>\\')
_FIRST_PRINTABLE, _LAST_PRINTABLE = 0x20, 0x7D

Certificate = Mapping[str, Any]
"""Of ``SSLSocket.getpeercert``; empty if the peer's certificate was not verified."""


def subject_of(certificate: Certificate | None) -> str:
    """The distinguished name of a certificate's subject, such as ``CN=client,O=Example``; "" without one."""
    parts = certificate.get("subject", ()) if certificate else ()
    return ",".join("+".join(f"{_SHORT.get(key, key)}={_escaped(text)}" for key, text in part) for part in parts[::-1])


def user_of(certificate: Certificate, rule: ClientTlsConfig) -> str | AccessRefusedError:
    """The name of the user that a certificate proves, or why it proves none.

    Args:
        certificate: verified; an empty one proves nobody.
        rule: its ``user_from`` says which name counts.
    """
    if rule.user_from == "distinguished_name":
        name, what = subject_of(certificate), "distinguished name"
    elif rule.user_from == "common_name":
        name, what = ",".join(_common_names(certificate)), "common name"
    else:
        names = list(_alternative_names(certificate, _SAN[rule.san_type]))
        name = names[rule.san_index] if rule.san_index < len(names) else ""
        what = f"subject alternative name {rule.san_index} of the type {rule.san_type}"
    shown = f"certificate '{subject_of(certificate)[:MAX_NAME]}'"
    if not name:
        return AccessRefusedError(f"login refused: {shown} has no {what}")
    if len(name) > MAX_NAME:
        return AccessRefusedError(
            f"login refused: {shown} has a {what} of {len(name)} characters, {MAX_NAME} are the most"
        )
    return name


def _common_names(certificate: Certificate) -> Iterator[str]:
    for part in certificate.get("subject", ()):
        yield from (text for key, text in part if key == "commonName" and text)


def _alternative_names(certificate: Certificate, kind: str) -> Iterator[str]:
    for found, text in certificate.get("subjectAltName", ()):
        if found == kind:
            yield _address(text.strip()) if kind == _SAN["ip"] else text


def _address(text: str) -> str:
    """An address in its usual form; ``ssl`` writes those of IPv6 with every zero."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text


def _escaped(text: str) -> str:
    shown = "".join(map(_escaped_character, text))
    if text[:1] in ("#", " "):
        shown = "\\" + shown
    if text[1:].endswith(" "):
        shown = shown[:-1] + "\\ "
    return shown


def _escaped_character(character: str) -> str:
    if character in _ESCAPED:
        return "\\" + character
    if _FIRST_PRINTABLE <= ord(character) <= _LAST_PRINTABLE:
        return character
    return "".join(f"\\{octet:02X}" for octet in character.encode("utf-8", "surrogatepass"))
