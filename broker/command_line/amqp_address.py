"""AmqpAddress: where a command finds a broker, as whom, and in which vhost.

Source: the AMQP URI specification (RabbitMQ), with one difference that pika and aio-pika make too: a path of a single ``/`` is the
default vhost and not the one whose name is empty, which this broker does not have.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote, urlsplit

import attrs

from understudy.broker.errors import UnderstudyError

AMQP_PORT: Final = 5672
GUEST: Final = "guest"
DEFAULT_VHOST: Final = "/"


class AmqpUrlError(UnderstudyError):
    """A text that names no broker; the message names it, without a password."""


@attrs.frozen(kw_only=True)
class AmqpAddress:
    """Host, port and vhost of a broker, and who asks.

    Attributes:
        user, password: None if the URL does not say.
    """

    host: str = "127.0.0.1"
    port: int = AMQP_PORT
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    vhost: str = DEFAULT_VHOST

    def __str__(self) -> str:
        """``host:port``: what may be shown to anybody."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str) -> AmqpAddress:
        """Read ``amqp://user:password@host:port/vhost``; everything behind the scheme may be missing, and a query is passed over.

        Raises:
            AmqpUrlError: it is no such URL, or one for TLS.
        """
        shown = _without_password(url)
        if url.startswith("amqps:"):
            raise AmqpUrlError(
                f"{shown}: this command does not speak TLS; give the amqp:// URL of a port without it, or run it on the "
                "broker's own host"
            )
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise AmqpUrlError(f"{shown} is no AMQP URL: {error}") from None
        if parts.scheme != "amqp" or not url.startswith("amqp://"):
            raise AmqpUrlError(f"{shown} is no AMQP URL: it is written amqp://user:password@host:port/vhost")
        if parts.fragment:
            raise AmqpUrlError(f"{shown} is no AMQP URL: '#' is written %23")
        vhost = parts.path[1:]
        if "/" in vhost:
            raise AmqpUrlError(f"{shown} is no AMQP URL: a '/' in the name of a vhost is written %2F, not {vhost!r}")
        return cls(
            host=unquote(parts.hostname or "127.0.0.1"),
            port=AMQP_PORT if port is None else port,
            user=_decoded(parts.username),
            password=_decoded(parts.password),
            vhost=unquote(vhost) or DEFAULT_VHOST,
        )


def _decoded(text: str | None) -> str | None:
    return None if text is None else unquote(text)


def _without_password(url: str) -> str:
    """``url`` for messages: what stands before an ``@`` may hold a password, however wrong the rest is."""
    scheme, separator, rest = url.partition("://")
    before, at, after = (rest if separator else url).rpartition("@")
    if not at:
        return url
    user = before.partition(":")[0]
    return f"{scheme}{separator}{user}:***@{after}" if separator else f"{user}:***@{after}"
