"""The table of settings: its fields give the TOML keys, the environment variables, the flags, the
reference page and the error messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nexo.model import Broker, Persistence

KIB, MIB, GIB = 1024, 1024**2, 1024**3
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_PORT = 65_535
_MODES = tuple(Persistence)


def _setting(
    default: Any,
    env: str,
    doc: str,
    low: int | None = None,
    high: int | None = None,
    *,
    choices: tuple[str, ...] = (),
) -> Any:
    """One field; without ``high``, the bound of its kind applies (see `sources`)."""
    limits = {"low": low, "high": high, "choices": choices}
    return field(default=default, metadata={"env": env, "doc": doc} | limits)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server runs with."""

    host: str = _setting("127.0.0.1", "SERVER_HOST", "Address to listen on, TCP and HTTP.")
    port: int = _setting(7654, "SERVER_SOCKET_TCP_PORT", "TCP port; 0 picks a free one.", 0, _PORT)
    http_port: int = _setting(
        8080, "SERVER_DASHBOARD_HTTP_PORT", "Dashboard and HTTP API port.", 0, _PORT
    )
    health_port: int = _setting(
        8081, "NEXO_HEALTH_PORT", "Port of `/health` and `/ready`, plain HTTP.", 0, _PORT
    )
    health: bool = _setting(True, "NEXO_HEALTH", "Serve `/health` and `/ready`.")
    kafka_port: int = _setting(
        0,
        "KAFKA_PORT",
        "A port for Kafka clients alone, who may also use the TCP port; 0: none.",
        0,
        _PORT,
    )
    kafka_advertised: str = _setting(
        "",
        "KAFKA_ADVERTISED",
        "`host:port` given to Kafka clients to connect to; if empty, the one they connected to.",
    )
    kafka_auto_create: bool = _setting(
        True, "KAFKA_AUTO_CREATE_TOPICS", "Create a stream when a Kafka client asks for its topic."
    )
    kafka_partitions: int = _setting(
        1,
        "KAFKA_NUM_PARTITIONS",
        "Partitions of streams that Kafka clients create this way.",
        1,
        1_024,
    )
    dashboard: bool = _setting(True, "NEXO_DASHBOARD", "Serve the dashboard and the HTTP API.")
    http_origins: str = _setting(
        "",
        "NEXO_HTTP_ORIGINS",
        "Web sites whose pages may use the HTTP API, such as `https://app.example.com`; separated "
        "by commas, or `*` for all if `auth` is on.",
    )
    alert_webhook: str = _setting(
        "",
        "NEXO_ALERT_WEBHOOK",
        "URL that alerts are posted to as JSON when they are raised and resolved.",
    )
    env: str = _setting(
        "dev",
        "NEXO_ENV",
        "`prod` switches the dashboard off unless asked for.",
        choices=("dev", "prod"),
    )
    log: str = _setting(
        "info", "NEXO_LOG", "Log level.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = _setting(
        "text", "NEXO_LOG_FORMAT", "For people or for machines.", choices=("text", "json")
    )
    data_dir: Path = _setting(Path("data"), "NEXO_DATA_DIR", "Where everything durable lives.")
    queue_path: Path | None = _setting(
        None, "QUEUE_ROOT_PERSISTENCE_PATH", "The queue broker's folder, if not under `data_dir`."
    )
    stream_path: Path | None = _setting(
        None, "STREAM_ROOT_PERSISTENCE_PATH", "The stream broker's folder, if not under `data_dir`."
    )
    pubsub_path: Path | None = _setting(
        None, "PUBSUB_ROOT_PERSISTENCE_PATH", "The pub/sub broker's folder, if not in `data_dir`."
    )
    lake_path: Path | None = _setting(
        None, "NEXO_LAKE_PATH", "The lake's folder, if not `lake` under `data_dir`."
    )
    lake_catalog: str = _setting(
        "", "NEXO_LAKE_CATALOG", "A catalog of PyIceberg's configuration instead of the folder's."
    )
    tls_cert: Path | None = _setting(
        None, "NEXO_TLS_CERT", "Certificate chain (PEM); with it both ports speak TLS only."
    )
    tls_key: Path | None = _setting(None, "NEXO_TLS_KEY", "The certificate's private key (PEM).")
    tls_client_ca: Path | None = _setting(
        None, "NEXO_TLS_CLIENT_CA", "If set, clients must show a certificate signed by this CA."
    )
    auth: bool = _setting(False, "NEXO_AUTH", "Require a user or token for everything.")
    users_file: Path | None = _setting(
        None, "NEXO_USERS_FILE", "Users and permissions, if not `users.json` in `data_dir`."
    )
    max_payload_bytes: int = _setting(
        10 * MIB, "MAX_PAYLOAD_SIZE", "Largest frame accepted, in bytes.", KIB, GIB
    )
    max_connections: int = _setting(
        20_000, "NEXO_MAX_CONNECTIONS", "Connections at once, to each broker.", 1
    )
    max_in_flight: int = _setting(
        100_000, "NEXO_MAX_IN_FLIGHT", "Unanswered requests of one connection.", 1
    )
    idle_ping_ms: int = _setting(
        30_000, "NEXO_IDLE_PING_MS", "Ping a silent client after this; drop it after twice this.", 1
    )
    busy_poll_us: int = _setting(
        400,
        "NEXO_BUSY_POLL_US",
        "Busy-poll this long for the next request while requests follow replies closely; 0: never.",
        0,
        10_000,
    )
    write_buffer_bytes: int = _setting(
        MIB,
        "NEXO_WRITE_BUFFER_BYTES",
        "Unsent bytes per connection before it counts as slow.",
        KIB,
        GIB,
    )
    stop_ms: int = _setting(
        4_000,
        "NEXO_STOP_MS",
        "A stopping broker that makes no progress for this long is killed.",
        100,
    )
    disk_reserve_bytes: int = _setting(
        64 * MIB, "NEXO_DISK_RESERVE_BYTES", "Writes are refused below this much free space.", 0
    )
    flush_ms: int = _setting(
        50, "STREAM_DEFAULT_FLUSH_MS", "Longest time a `file_async` write waits for its sync.", 1
    )
    flush_messages: int = _setting(
        5_000, "STREAM_FLUSH_MESSAGES", "Records that trigger a `file_async` sync early.", 1
    )
    max_open_files: int = _setting(256, "STREAM_MAX_OPEN_FILES", "Log files kept open at once.", 8)
    segment_bytes: int = _setting(64 * MIB, "NEXO_SEGMENT_BYTES", "Size of a log segment.", KIB)
    retention_ms: int = _setting(
        7 * DAY_MS, "STREAM_RETENTION_MS", "Default age limit of stream records; 0 for none.", 0
    )
    retention_bytes: int = _setting(
        GIB, "STREAM_RETENTION_BYTES", "Default size limit of a stream; 0 for none.", 0
    )
    retention_check_ms: int = _setting(
        600_000, "STREAM_RETENTION_CHECK_MS", "How often retention is checked.", 10
    )
    hot_ms: int = _setting(
        HOUR_MS,
        "STREAM_HOT_MS",
        "Streams with tiering keep what is younger in the log, whatever their limits; 0 for none.",
        0,
    )
    hot_messages: int = _setting(
        10_000,
        "STREAM_HOT_MESSAGES",
        "They also keep this many messages per partition in the log; 0 for none.",
        0,
    )
    stream_unsynced_bytes: int = _setting(
        256 * MIB,
        "STREAM_MAX_UNSYNCED_BYTES",
        "Published bytes that may wait for their sync before producers are refused.",
        KIB,
    )
    auto_create_streams: bool = _setting(
        False,
        "STREAM_AUTO_CREATE",
        "Create a stream with the default options when something is first published to it.",
    )
    stream_cdc: bool = _setting(
        False, "STREAM_CDC", "Record every produce and commit on the system stream `$cdc`."
    )
    store_max_bytes: int = _setting(
        0, "STORE_MAX_BYTES", "Memory budget of the store; 0 for none. Over it, LRU eviction.", 0
    )
    store_snapshot_ms: int = _setting(
        0, "STORE_SNAPSHOT_MS", "How often the store is saved to disk; 0 for never.", 0
    )
    retained_ttl_ms: int = _setting(
        HOUR_MS,
        "PUBSUB_DEFAULT_RETAINED_TTL_MS",
        "How long retained messages last that came without a TTL from clients without HELLO.",
        0,
    )
    subscriber_queue_messages: int = _setting(
        1_000, "PUBSUB_SUBSCRIBER_QUEUE", "Messages kept for a slow subscriber.", 1
    )
    subscriber_queue_bytes: int = _setting(
        8 * MIB, "PUBSUB_SUBSCRIBER_QUEUE_BYTES", "Bytes kept for a slow subscriber.", KIB
    )
    auto_create_queues: bool = _setting(
        False, "NEXO_AUTO_CREATE_QUEUES", "Let the first push or pop of a queue create it."
    )
    queue_visibility_ms: int = _setting(
        30_000, "QUEUE_VISIBILITY_TIMEOUT_MS", "Default lease of a job.", 1, 10 * 366 * DAY_MS
    )
    queue_max_retries: int = _setting(
        5, "QUEUE_MAX_RETRIES", "Default retries of a job.", 0, 1_000_000
    )

    queue_persistence: str = _setting(
        "file_sync",
        "QUEUE_PERSISTENCE",
        "Default durability of a queue; `replicated` needs `replicate`.",
        choices=_MODES,
    )
    stream_persistence: str = _setting(
        "file_async",
        "STREAM_PERSISTENCE",
        "Default durability of a stream; `replicated` needs `replicate`.",
        choices=_MODES,
    )
    retained_persistence: str = _setting(
        "file_async",
        "PUBSUB_RETAINED_PERSISTENCE",
        "Durability of retained messages; `replicated` needs `replicate`.",
        choices=_MODES,
    )
    replicate: str = _setting(
        "",
        "NEXO_REPLICATE",
        "Object store to replicate to: `s3://`, `gs://`, `az://` or `file:///`, with a prefix.",
    )
    replicate_ms: int = _setting(
        250,
        "NEXO_REPLICATE_MS",
        "Longest time before a write that nobody waits for is sent to the store.",
        10,
        60_000,
    )
    replicate_wait_ms: int = _setting(
        10_000,
        "NEXO_REPLICATE_WAIT_MS",
        "How long a `replicated` write waits for the store before it fails.",
        100,
        600_000,
    )
    replicate_lease_ms: int = _setting(
        3_000,
        "NEXO_REPLICATE_LEASE_MS",
        "A leader that has not renewed its lease for this long is replaced by a standby.",
        500,
        600_000,
    )
    replicate_keep_ms: int = _setting(
        DAY_MS,
        "NEXO_REPLICATE_KEEP_MS",
        "How far back `nexo restore --at` can go.",
        0,
    )
    replicate_address: str = _setting(
        "",
        "NEXO_REPLICATE_ADDRESS",
        "`host:port` where clients reach this server, which standbys pass on to them.",
    )

    replicate_key_file: Path | None = _setting(
        None,
        "NEXO_REPLICATE_KEY_FILE",
        "Encrypts every object with the key in this file: 32 bytes in base64, on all servers.",
    )

    @property
    def lake_folder(self) -> Path:
        """Where the lake is, unless a catalog says otherwise."""
        return (self.lake_path or self.data_dir / "lake").absolute()

    @property
    def users_path(self) -> Path:
        """The file that ``nexo user`` manages."""
        return (self.users_file or self.data_dir / "users.json").absolute()

    @property
    def origins(self) -> tuple[str, ...]:
        """The web sites of ``http_origins``."""
        return tuple(part.strip() for part in self.http_origins.split(",") if part.strip())

    def folder(self, broker: Broker) -> Path:
        """Where ``broker`` keeps its data."""
        return (self._own_folder(broker) or self.data_dir / broker.label).absolute()

    def folder_setting(self, broker: Broker) -> str:
        """The setting that says where ``broker`` keeps its data."""
        return f"{broker.label}_path" if self._own_folder(broker) else "data_dir"

    def _own_folder(self, broker: Broker) -> Path | None:
        return {
            Broker.QUEUE: self.queue_path,
            Broker.STREAM: self.stream_path,
            Broker.PUBSUB: self.pubsub_path,
        }.get(broker)
