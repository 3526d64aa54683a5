"""The report of each broker about itself, as ``client.info()`` returns it.

Fields that only a newer server sends are ignored; those that an older one does not send have their
defaults.
"""

from __future__ import annotations

import msgspec


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a broker's report."""


class Durations(Reported, frozen=True):
    """How long things took."""

    p50_ms: float | None = None
    """Half of them stayed below this; None if there were none."""
    p99_ms: float | None = None
    sum_s: float = 0.0
    buckets: list[int] = []
    """How many stayed below each of `nexo.model.histogram.BOUNDS_S`, but not the one before."""


class ConnectionLimits(Reported, frozen=True):
    """The limits of connections, and how often one was closed or rejected for them."""

    max_connections: int = 0
    turned_away: int = 0
    max_in_flight: int = 0
    max_payload_bytes: int = 0
    write_buffer_bytes: int = 0
    slow_readers: int = 0
    """Connections that do not read what is sent to them."""
    idle_ping_ms: int = 0


class DiskInfo(Reported, frozen=True):
    """A broker's disk."""

    syncs: int = 0
    sync_ms: float = 0.0
    """How long a sync takes, averaged over the last ones."""
    sync_max_ms: float = 0.0
    sync_times: Durations = Durations()
    free_bytes: int = 0
    full: bool = False
    """Writes are rejected for lack of space."""
    failed: str | None = None
    """Why a sync failed; nothing is written after it."""


class ProcessInfo(Reported, frozen=True):
    """A broker's process."""

    pid: int = 0
    rss_bytes: int = 0
    cpu_s: float = 0.0


class ReplicaInfo(Reported, frozen=True):
    """How far the object store is behind a broker."""

    number: int = 0
    """The next number of its log there."""
    epoch: int = 0
    lag_ms: int = 0
    lag_bytes: int = 0
    window_ms: int = 0
    """How long writes are gathered before they are put."""
    last_put_ms: int = 0
    puts: int = 0
    put_failures: int = 0
    put_ms: float = 0.0
    waiting: int = 0
    """Replies that wait for the store."""
    overflowed: bool = False


class LostData(Reported, frozen=True):
    """Losses by damage to files."""

    count: int = 0
    first: list[str] = []
    """The first few losses, in words."""


class BrokerInfo(Reported, frozen=True):
    """The part of a report that every broker has."""

    connections: int = 0
    dialects: dict[str, int] = {}
    """Connections by protocol."""
    limits: ConnectionLimits = ConnectionLimits()
    disk: DiskInfo = DiskInfo()
    process: ProcessInfo = ProcessInfo()
    replica: ReplicaInfo | None = None
    """None unless the server replicates."""
    requests: dict[str, Durations] = {}
    """By the name of the request."""


class SavingInfo(Reported, frozen=True):
    """The store's saves."""

    enabled: bool = False
    running: bool = False
    saved_ms: int | None = None
    """When the last one was complete."""
    error: str | None = None


class StoreInfo(BrokerInfo, frozen=True):
    """The store: what it holds, and how it is used."""

    keys: int = 0
    keys_with_ttl: int = 0
    used_bytes: int = 0
    max_bytes: int = 0
    """0 is no limit."""
    evicted: int = 0
    expired: int = 0
    commands: int = 0
    hits: int = 0
    misses: int = 0
    snapshot: SavingInfo = SavingInfo()


class SlowSubscriber(Reported, frozen=True):
    """A client that reads its messages too slowly."""

    client: str = ""
    waiting: int = 0
    dropped: int = 0


class PubSubInfo(BrokerInfo, frozen=True):
    """Pub/sub: who is subscribed, and what was delivered since the start."""

    subscribers: int = 0
    subscriptions: int = 0
    retained: int = 0
    retained_bytes: int = 0
    wills: int = 0
    published: int = 0
    delivered: int = 0
    dropped: int = 0
    slow: list[SlowSubscriber] = []
    lost: LostData = LostData()


class QueuesInfo(BrokerInfo, frozen=True):
    """All queues together; `QueueInfo` is one."""

    queues: int = 0
    waiting: int = 0
    scheduled: int = 0
    working: int = 0
    dead: int = 0
    pushed_total: int = 0
    finished_total: int = 0
    failed_total: int = 0
    died_total: int = 0
    lost: LostData = LostData()


class LakeLocation(Reported, frozen=True):
    """Where the lake is, as seen from the server's machine."""

    host: str = ""
    folder: str = ""
    catalog: str = ""


class StreamsInfo(BrokerInfo, frozen=True):
    """All streams together; `StreamInfo` is one."""

    streams: int = 0
    groups: int = 0
    transactions: int = 0
    published: int = 0
    waiting: int = 0
    """Requests that wait for records."""
    unsynced_bytes: int = 0
    lost: LostData = LostData()
    lake: LakeLocation = LakeLocation()


class ServerInfo(Reported, frozen=True):
    """The reports of the four brokers."""

    store: StoreInfo
    pubsub: PubSubInfo
    queue: QueuesInfo
    stream: StreamsInfo
