"""taskiq on Nexo: broker, result backend and schedule source (SPEC M3)."""

from __future__ import annotations

from nexo.integrations.taskiq.broker import NexoBroker
from nexo.integrations.taskiq.results import NexoResultBackend
from nexo.integrations.taskiq.schedules import NexoScheduleSource

__all__ = ["NexoBroker", "NexoResultBackend", "NexoScheduleSource"]
