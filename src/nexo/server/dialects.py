"""The protocols this server speaks."""

from __future__ import annotations

from nexo.dialects.dialect import Dialect
from nexo.dialects.kafka.dialect import KafkaDialect
from nexo.dialects.nexo.dialect import NexoDialect

KAFKA = KafkaDialect()
DIALECTS: tuple[Dialect, ...] = (NexoDialect(), KAFKA)
"""Asked in this order whose connection it is; what none of them claims goes to the first."""
