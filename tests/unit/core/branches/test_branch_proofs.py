"""A broker tells a transaction manager for later which broker it is, and what became of a branch that is gone."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_GET,
    DTX_COMMIT,
    DTX_END,
    DTX_PREPARE,
    DTX_ROLLBACK,
    DTX_SELECT,
    DTX_START,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.transactions.outcome_query import OUTCOME_EXCHANGE

XID = (1, b"global", b"branch")


def prepared(core: Core, client: Client) -> str:
    """Prepare a branch with one message; the transaction that prepare-ok names."""
    client.send(
        encode_method(1, DTX_SELECT),
        encode_method(1, DTX_START, *XID, False, False),
        publish("q", b"1"),
        encode_method(1, DTX_END, *XID, False, False),
        encode_method(1, DTX_PREPARE, *XID),
    )
    core.sync()
    status, transaction = client.events()[-1][2]
    assert status == 0
    return transaction if isinstance(transaction, str) else bytes(transaction).decode()


def outcome(core: Core, client: Client, transaction: str) -> str:
    """The broker's answer to the question for a transaction."""
    properties = encode_properties(reply_to="replies")
    client.send(publish_frames(1, OUTCOME_EXCHANGE, "", properties, f"outcome {transaction}".encode(), 4096))
    core.sync()  # the question is answered
    core.sync()  # the answer is in its queue
    client.events()
    client.method(BASIC_GET, "replies", True)
    core.sync()
    return bytes(client.events()[-1][-1]).decode()


@pytest.mark.parametrize(
    ("ends", "told"), [((DTX_COMMIT, *XID, False), "committed"), ((DTX_ROLLBACK, *XID), "rolled back")]
)
def test_the_transaction_of_a_branch_tells_what_became_of_it(ends: tuple[object, ...], told: str) -> None:
    core = Core()
    client = core.client()
    core.queue(client, "q")
    core.queue(client, "replies")
    transaction = prepared(core, client)
    assert outcome(core, client, transaction) == "pending"
    client.method(*ends)  # type: ignore[arg-type]
    core.sync()
    client.events()
    assert outcome(core, client, transaction) == told


@pytest.mark.parametrize(("cluster", "founding"), [("shop", "1f"), ("", "")])
def test_a_client_is_told_which_broker_it_is(cluster: str, founding: str) -> None:
    core = Core()
    core.broker.reception.belongs_to(cluster, founding)
    client = Client(core)
    client.send(PROTOCOL_HEADER)
    properties = client.events()[0][2][2]
    found = (properties.get("cluster_name", ""), properties.get("understudy_founding", ""))
    assert found == (cluster, founding)
