"""dramatiq on Nexo: broker, results and rate limiters (SPEC M3)."""

from __future__ import annotations

from nexo.integrations.dramatiq.backends import DramatiqResultBackend, NexoRateLimiterBackend
from nexo.integrations.dramatiq.broker import DramatiqBroker

__all__ = ["DramatiqBroker", "DramatiqResultBackend", "NexoRateLimiterBackend"]
