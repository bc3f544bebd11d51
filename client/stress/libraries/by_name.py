"""The client libraries, by name."""

from __future__ import annotations

from typing import Final

from understudy.client.stress.libraries.aio_pika_connection import AioPikaConnection
from understudy.client.stress.libraries.connection import Connect
from understudy.client.stress.libraries.kombu_connection import KombuConnection
from understudy.client.stress.libraries.pika_connection import PikaConnection

LIBRARIES: Final[dict[str, Connect]] = {
    "pika": PikaConnection,
    "aio-pika": AioPikaConnection,
    "kombu": KombuConnection,
}
