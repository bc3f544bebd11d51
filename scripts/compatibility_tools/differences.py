"""Known differences of each suite, with reasons. A unit test holds docs/compatibility.md against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from scripts.compatibility_tools.outcomes import Difference

_INTERNET: Final = "needs a server of the Internet, badssl.com"
_IMMEDIATE: Final = "`immediate` works here; RabbitMQ has 540"
_RACE: Final = "the test's own connection may end first"
_CONTROL: Final = "needs `rabbitmqctl`"

DIFFERENCES: Final[Mapping[str, Sequence[Difference]]] = {
    "amqp": (
        Difference(tests="*::test_publish_consume[*-True]", reason=_IMMEDIATE),
        Difference(tests="*::test_tls_default_certs", reason=_INTERNET, everywhere=True, sometimes=True),
        Difference(tests="*::test_tls_no_default_certs_fails", reason=_INTERNET, everywhere=True, sometimes=True),
    ),
    "aio-pika": (
        Difference(tests="*::test_create_channels_during_reconnect", reason=_RACE, everywhere=True, sometimes=True),
    ),
    "java": (
        Difference(tests="*ConnectionRecovery::*", reason=_CONTROL, sometimes=True),
        Difference(tests="*TopologyRecovery*", reason=_CONTROL, sometimes=True),
        Difference(tests="*Policies::*", reason=_CONTROL),
        Difference(tests="*Metrics::check*Recovery*", reason=_CONTROL, sometimes=True),
        Difference(tests="*UserIDHeader::impersonatedUserId", reason=_CONTROL),
        Difference(tests="*Routing::basicReturn", reason=_IMMEDIATE),
        Difference(
            tests="*Routing::basicReturnTransactional",
            reason="comes back at publish (`amqp.mandatory_in_tx`)",
        ),
        Difference(
            tests="*QosTests::noAckObeysLimit", reason="no count holds back a consumer without acknowledgements"
        ),
        Difference(
            tests="*DeadLetterExchange::republish",
            reason="as in RabbitMQ 4: a client's `x-death` is not counted",
        ),
    ),
}
