"""taskiq on Nexo: broker, result backend and schedule source (SPEC M3)."""

from __future__ import annotations

from nexo.integrations.taskiq.broker import TaskiqBroker
from nexo.integrations.taskiq.results import TaskiqResultBackend
from nexo.integrations.taskiq.schedules import NexoScheduleSource

__all__ = ["NexoScheduleSource", "TaskiqBroker", "TaskiqResultBackend"]
