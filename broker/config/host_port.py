"""HostPort: the reader of `host:port`; and `servers_of`, which reads the text that an option has for an ensemble.

The libraries that connect raise a bare ValueError or UnicodeError for a port above 65535 or a label of a name that is empty.
A broker or a command reads the value here first, so that an operator is told the key or the option, and the value.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Final

from attrs import frozen

from understudy.broker.config.errors import ConfigError
from understudy.broker.config.readers import Host, Place, Text

CHROOT: Final = Text(
    "a path such as '/production'", r"(/(?!\.{1,2}(?:/|$))[^/\s,\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+"
)
"""Source: ZooKeeper Programmer's Guide, The ZooKeeper Data Model."""

_ADDRESS: Final = re.compile(r"(?:\[(?P<ipv6>[^\[\]]*)\]|(?P<name>[^\s/,:@?#\\\[\]]+)):(?P<port>[0-9]{1,5})")
_DELIMITERS: Final = b"/:@?#"


@frozen
class HostPort:
    """A host as `Host` has it, an IPv6 address in brackets; a colon; and a port from 1 to 65535."""

    expected: str = "'host:port' with a port from 1 to 65535"

    def read(self, value: object, place: Place) -> str:
        found = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
        if found is None or not 1 <= int(found["port"]) <= 65_535:
            raise place.refuse(value, self.expected)
        try:
            if (name := found["name"]) is None:
                ipaddress.IPv6Address(found["ipv6"])
            else:
                Host(self.expected).read(name, place)
        except (ValueError, ConfigError) as error:  # the operator is shown the whole value
            raise place.refuse(value, self.expected) from error
        if name is not None and any(delimiter in _DELIMITERS for delimiter in name.encode("idna")):
            raise place.refuse(value, self.expected)  # such as U+2100, which is "a/c" when it is looked up
        return found[0]


def servers_of(text: str, option: str) -> tuple[tuple[str, ...], str]:
    """The servers of an ensemble, and its chroot.

    Args:
        text: host:port, separated by commas; a chroot may follow.
        option: what has the text, as errors call it.

    Returns:
        Each host:port; the chroot, "" if there is none.

    Raises:
        ConfigError: a server or the chroot cannot be used.
    """
    place = Place(option, Path())
    hosts, _, chroot = text.partition("/")
    servers = tuple(HostPort().read(each.strip(), place) for each in hosts.split(","))
    if len(set(servers)) < len(servers):
        raise place.refuse(text, "a list of different 'host:port'")
    chroot = chroot.rstrip("/")
    return servers, CHROOT.read(f"/{chroot}", place) if chroot else ""
