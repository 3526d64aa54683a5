"""Cron schedules: what each pushes, and when next (SPEC D9)."""

from __future__ import annotations

import msgspec

from nexo.brokers.queue.cron import next_after
from nexo.brokers.queue.jobs import NewJobs
from nexo.brokers.queue.records import CronMoved, CronSet
from nexo.errors import NotFound

_REMOVED = -1
"""The next time of a removed schedule."""


class Schedules:
    """The schedules of one queue."""

    __slots__ = ("by_name",)

    def __init__(self, by_name: dict[str, CronSet] | None = None) -> None:
        self.by_name = by_name or {}

    def set(self, cron: CronSet) -> None:
        self.by_name[cron.name] = cron

    def move(self, moved: CronMoved) -> None:
        """Set a schedule's next time, or remove it."""
        if moved.next_ms == _REMOVED:
            del self.by_name[moved.name]
        else:
            cron = self.by_name[moved.name]
            self.by_name[moved.name] = msgspec.structs.replace(cron, next_ms=moved.next_ms)

    def removal(self, name: str) -> CronMoved:
        """The record that removes a schedule; `NotFound` if there is none of that name."""
        if name not in self.by_name:
            raise NotFound(f"Schedule {name!r} not found")
        return CronMoved(name, _REMOVED)

    def due(self, now_ms: int) -> list[CronSet]:
        return [cron for cron in self.by_name.values() if cron.next_ms <= now_ms]

    def next_ms(self) -> int:
        """When the next one is due. There must be one."""
        return min(cron.next_ms for cron in self.by_name.values())


def following(cron: CronSet, now_ms: int) -> CronMoved:
    """The next time after now: a schedule that was due while the server was down runs once."""
    return CronMoved(cron.name, next_after(cron.text, now_ms, cron.zone))


def job_of(cron: CronSet) -> NewJobs:
    """The job that a schedule pushes."""
    keys: list[str | None] | None = None if cron.key is None else [cron.key]
    return NewJobs(1, cron.value, cron.priority, keys=keys)
