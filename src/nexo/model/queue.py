"""Reports of the queue broker, in values that the engine, the services and the clients share."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import msgspec


class JobOutcome(IntEnum):
    """How a worker settles jobs, numbered as the protocol numbers it."""

    ACK = 0
    NACK = 1
    REJECT = 2
    RELEASE = 3
    RETURN = 4
    """As RELEASE, after a look: the next delivery says that it is not the first."""


ACK, NACK, REJECT, RELEASE, RETURN = JobOutcome


class PushReply(msgspec.Struct, array_like=True, frozen=True):
    """The result of a push: jobs numbered from ``base`` on, except those in ``instead``."""

    incarnation: int
    base: int
    count: int
    instead: dict[int, int] = {}
    """The index of each job that was not added, and the job that has its dedup key."""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue's options and counts."""

    name: str
    options: dict[str, Any]
    created_ms: int
    paused: bool
    waiting: int
    scheduled: int
    working: int
    dead: int
    schedules: int
    pushed_total: int
    finished_total: int
    failed_total: int
    died_total: int
    losses: list[str] = field(default_factory=list)
    """Losses by damage to its files; empty for nearly every queue."""


@dataclass(frozen=True, slots=True)
class QueueSurvey:
    """A page of queues."""

    queues: list[QueueInfo]
    total: int
    """Queues that match."""
    next: int
    """Where the next page begins; 0 after the last."""


@dataclass(frozen=True, slots=True)
class JobState:
    """Where a job is."""

    state: str
    """``waiting``, ``scheduled``, ``working``, ``dead``, ``replaced`` (by a push with its
    ``dedup_key``) or ``done``: finished, cancelled, purged, or expired before it started."""
    attempts: int
    """Deliveries that failed so far; one that runs is not among them."""
    reason: str | None
    """Why it failed the last time."""
    progress: Any
    """The progress it last reported while running."""
    result: Any
    """Its result, while the queue keeps results."""
    replaced_by: str | None = None
    """The id of the job that replaced it; the queue remembers the last 10,000."""

    @property
    def ended(self) -> bool:
        """Whether it will not run again by itself."""
        return self.state in ("dead", "done", "replaced")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cron schedule of a queue."""

    name: str
    cron: str
    next_ms: int
    priority: int
    key: str | None
    zone: str = ""
    """The time zone of its times, such as ``Europe/Rome``; empty for UTC."""
