"""KafkaRefusedError, apart from what imports aiokafka: commands that do without Kafka know the error too."""

from __future__ import annotations

from understudy.broker.errors import UnderstudyError


class KafkaRefusedError(UnderstudyError):
    """Kafka, or a topic of it, cannot be used as configured: an operator has to change something."""
