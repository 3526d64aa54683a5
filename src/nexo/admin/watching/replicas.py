"""What the supervisor says of this server's part among replicas, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from nexo.admin.watching.alerts import LATE_REPLICA_MS, Alert
from nexo.replication.state import FILE, ReplicaState

Level: TypeAlias = Literal["critical", "warning"]


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
