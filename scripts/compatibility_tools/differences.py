"""Known differences of each suite, with reasons. A unit test holds docs/compatibility.md against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from scripts.compatibility_tools.outcomes import Difference

_INTERNET: Final = "needs a server of the Internet, badssl.com"
_IMMEDIATE: Final = "`immediate` works here; RabbitMQ has 540"

DIFFERENCES: Final[Mapping[str, Sequence[Difference]]] = {
    "amqp": (
        Difference(tests="*::test_publish_consume[*-True]", reason=_IMMEDIATE),
        Difference(tests="*::test_tls_default_certs", reason=_INTERNET, everywhere=True, sometimes=True),
        Difference(tests="*::test_tls_no_default_certs_fails", reason=_INTERNET, everywhere=True, sometimes=True),
    ),
}
