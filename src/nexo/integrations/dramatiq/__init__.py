"""dramatiq on Nexo: broker, results and rate limiters (SPEC M3)."""

from __future__ import annotations

from nexo.integrations.dramatiq.broker import DramatiqBroker
from nexo.integrations.dramatiq.rate_limits import NexoRateLimiterBackend
from nexo.integrations.dramatiq.results import DramatiqResultBackend

__all__ = ["DramatiqBroker", "DramatiqResultBackend", "NexoRateLimiterBackend"]
