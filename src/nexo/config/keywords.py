"""The settings as typed keywords, for servers that tests start; `settings` says what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias, TypedDict

Mode: TypeAlias = Literal["file_async", "file_sync", "replicated"]


class ServerSettings(TypedDict, total=False):
    """Settings of a server without its ``data_dir``; times and sizes may be texts like ``7d``."""

    host: str
    port: int
    http_port: int
    health_port: int
    health: bool
    kafka_port: int
    kafka_advertised: str
    kafka_auto_create: bool
    kafka_partitions: int
    kafka_rebalance_delay_ms: int | str
    dashboard: bool
    http_origins: str
    alert_webhook: str
    env: Literal["dev", "prod"]
    log: Literal["debug", "info", "warning", "error"]
    log_format: Literal["text", "json"]
    queue_path: str | Path | None
    stream_path: str | Path | None
    pubsub_path: str | Path | None
    lake_path: str | Path | None
    lake_catalog: str
    tls_cert: str | Path | None
    tls_key: str | Path | None
    tls_client_ca: str | Path | None
    auth: bool
    users_file: str | Path | None
    max_payload_bytes: int | str
    max_connections: int
    max_silent_connections: int
    max_in_flight: int
    idle_ping_ms: int | str
    busy_poll_us: int
    write_buffer_bytes: int | str
    stop_ms: int | str
    disk_reserve_bytes: int | str
    flush_ms: int | str
    flush_messages: int
    max_open_files: int
    segment_bytes: int | str
    retention_ms: int | str
    retention_bytes: int | str
    retention_check_ms: int | str
    hot_ms: int | str
    hot_messages: int
    stream_unsynced_bytes: int | str
    group_ack_wait_ms: int | str
    group_max_deliveries: int
    group_max_ack_pending: int
    auto_create_streams: bool
    stream_cdc: bool
    store_max_bytes: int | str
    classic_ttl_ms: int | str
    store_snapshot_ms: int | str
    retained_ttl_ms: int | str
    subscriber_queue_messages: int
    subscriber_queue_bytes: int | str
    classic_batch: int
    classic_wait_ms: int | str
    auto_create_queues: bool
    queue_visibility_ms: int | str
    queue_max_retries: int
    queue_persistence: Mode
    stream_persistence: Mode
    retained_persistence: Mode
    replicate: str
    replicate_ms: int | str
    replicate_wait_ms: int | str
    replicate_lease_ms: int | str
    replicate_keep_ms: int | str
    replicate_address: str
    replicate_key_file: str | Path | None
