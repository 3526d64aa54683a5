"""What is known of the replicas: the supervisor writes it to a file, the dashboard reads it."""

from __future__ import annotations

import msgspec

FILE = "replica.json"
"""In the folder of the run."""


class ReplicaState(msgspec.Struct):
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
