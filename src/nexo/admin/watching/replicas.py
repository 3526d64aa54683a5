"""What the supervisor says of this server's part among replicas, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from nexo.admin.watching.alerts import LATE_REPLICA_MS, Alert

Level: TypeAlias = Literal["critical", "warning"]

FILE = "replica.json"
"""In the folder of the run; written by the supervisor."""


class ReplicaState(msgspec.Struct, frozen=True):
    """This server among those that share an object store."""

    role: str = "starting"
    """``leader``, ``standby`` or ``starting``."""
    leader: str = ""
    """Where clients find the leader."""
    term: str = ""
    """Names the leadership."""
    lag_ms: int = 0
    """Of a leader: how long something has waited to be shipped. Of a standby: how far behind."""
    lease_number: int = -1
    last_put_ms: int = 0
    """When this leader last renewed its lease; 0 for a standby."""
    standbys: list[str] = []
    """Those that the leader knows of, by their server ids."""
    problem: str = ""
    """What is wrong now."""
    prepared: bool = False
    """Of a standby: whether processes wait, so that a takeover is quick."""
    takeover_ms: int = 0
    """From asking for the lease until all brokers served, the last time."""


def read(folder: Path) -> ReplicaState | None:
    """The state of this server; None if it does not replicate."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=ReplicaState)
    except (OSError, msgspec.MsgspecError):
        return None


def of_replica(state: ReplicaState) -> Iterator[Alert]:
    """What is wrong with replication as a whole."""
    if state.problem:
        level: Level = "critical" if state.role == "leader" else "warning"
        yield Alert(level, "replica", "stream", "", f"replication: {state.problem}")
    elif state.role == "standby" and state.lag_ms > LATE_REPLICA_MS:
        message = f"this standby is {state.lag_ms // 1000} s behind {state.leader}"
        yield Alert("warning", "standby-behind", "stream", "", message)
