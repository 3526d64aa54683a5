"""The protocols this server speaks."""

from __future__ import annotations

from nexo.dialects.dialect import Dialect
from nexo.dialects.nexo.dialect import NexoDialect

DIALECTS: tuple[Dialect, ...] = (NexoDialect(),)
"""Asked in this order whose connection it is; what none of them claims goes to the first."""
