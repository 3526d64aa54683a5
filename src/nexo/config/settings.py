"""The table of settings: its fields give the TOML keys, the environment variables, the flags, the
reference page and the error messages."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from nexo.model import Broker, Persistence
from nexo.options.option import option
from nexo.options.queue import MAX_POP, LeaseMillis, QueueOptions, Retries
from nexo.options.stream import MAX_PARTITIONS, SharedOptions, StreamOptions

KIB, MIB, GIB = 1024, 1024**2, 1024**3
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_LONGEST_MS = 100 * 366 * DAY_MS
_MOST_BYTES = 2**53
_MOST = 2**31 - 1
"""The largest values that can be waited for, sent and counted."""

Port: TypeAlias = Annotated[int, Meta(ge=0, le=65_535)]
CountOrZero: TypeAlias = Annotated[int, Meta(ge=0, le=_MOST)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=_MOST)]
Millis: TypeAlias = Annotated[int, Meta(ge=0, le=_LONGEST_MS)]
PositiveMillis: TypeAlias = Annotated[int, Meta(ge=1, le=_LONGEST_MS)]
Bytes: TypeAlias = Annotated[int, Meta(ge=0, le=_MOST_BYTES)]
AtLeastKib: TypeAlias = Annotated[int, Meta(ge=KIB, le=_MOST_BYTES)]


def setting(variable: str, meaning: str) -> Meta:
    """Describes a setting and the environment variable that sets it."""
    return option(meaning, variable=variable)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a server."""

    host: Annotated[
        str,
        Meta(min_length=1),
        setting("SERVER_HOST", "Address to listen on, TCP and HTTP."),
    ] = "127.0.0.1"
    port: Annotated[Port, setting("SERVER_SOCKET_TCP_PORT", "TCP port; 0 picks a free one.")] = 7654
    http_port: Annotated[
        Port, setting("SERVER_DASHBOARD_HTTP_PORT", "Dashboard and HTTP API port.")
    ] = 8080
    health_port: Annotated[
        Port, setting("NEXO_HEALTH_PORT", "Port of `/health` and `/ready`, plain HTTP.")
    ] = 8081
    health: Annotated[bool, setting("NEXO_HEALTH", "Serve `/health` and `/ready`.")] = True
    kafka_port: Annotated[
        Port,
        setting(
            "KAFKA_PORT", "A port for Kafka clients alone, who may also use the TCP port; 0: none."
        ),
    ] = 0
    kafka_advertised: Annotated[
        str,
        setting(
            "KAFKA_ADVERTISED",
            "`host:port` for Kafka clients to connect to; if empty, the one they used.",
        ),
    ] = ""
    kafka_auto_create: Annotated[
        bool,
        setting(
            "KAFKA_AUTO_CREATE_TOPICS", "Create a stream when a Kafka client asks for its topic."
        ),
    ] = True
    kafka_partitions: Annotated[
        int,
        Meta(ge=1, le=MAX_PARTITIONS),
        setting(
            "KAFKA_NUM_PARTITIONS", "Partitions of streams that Kafka clients create this way."
        ),
    ] = 1
    kafka_rebalance_delay_ms: Annotated[
        int,
        Meta(ge=0, le=60_000),
        setting(
            "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS",
            "How long an empty group of Kafka clients waits for further members after each one; "
            "Kafka's default is 3,000.",
        ),
    ] = 0
    dashboard: Annotated[
        bool, setting("NEXO_DASHBOARD", "Serve the dashboard and the HTTP API.")
    ] = True
    http_origins: Annotated[
        str,
        setting(
            "NEXO_HTTP_ORIGINS",
            "Web sites whose pages may use the HTTP API, such as `https://app.example.com`; "
            "separated by commas, or `*` for all if `auth` is on.",
        ),
    ] = ""
    alert_webhook: Annotated[
        str,
        setting(
            "NEXO_ALERT_WEBHOOK",
            "URL that alerts are posted to as JSON when they are raised and resolved.",
        ),
    ] = ""
    env: Annotated[
        Literal["dev", "prod"],
        setting("NEXO_ENV", "`prod` switches the dashboard off unless asked for."),
    ] = "dev"
    log: Annotated[
        Literal["debug", "info", "warning", "error"], setting("NEXO_LOG", "Log level.")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], setting("NEXO_LOG_FORMAT", "For people or for machines.")
    ] = "text"
    data_dir: Annotated[Path, setting("NEXO_DATA_DIR", "Where everything durable lives.")] = Path(
        "data"
    )
    queue_path: Annotated[
        Path | None,
        setting(
            "QUEUE_ROOT_PERSISTENCE_PATH", "The queue broker's folder, if not under `data_dir`."
        ),
    ] = None
    stream_path: Annotated[
        Path | None,
        setting(
            "STREAM_ROOT_PERSISTENCE_PATH", "The stream broker's folder, if not under `data_dir`."
        ),
    ] = None
    pubsub_path: Annotated[
        Path | None,
        setting(
            "PUBSUB_ROOT_PERSISTENCE_PATH", "The pub/sub broker's folder, if not in `data_dir`."
        ),
    ] = None
    lake_path: Annotated[
        Path | None,
        setting("NEXO_LAKE_PATH", "The lake's folder, if not `lake` under `data_dir`."),
    ] = None
    lake_catalog: Annotated[
        str,
        setting(
            "NEXO_LAKE_CATALOG", "A catalog of PyIceberg's configuration instead of the folder's."
        ),
    ] = ""
    tls_cert: Annotated[
        Path | None,
        setting("NEXO_TLS_CERT", "Certificate chain (PEM); with it both ports speak TLS only."),
    ] = None
    tls_key: Annotated[
        Path | None, setting("NEXO_TLS_KEY", "The certificate's private key (PEM).")
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        setting("NEXO_TLS_CLIENT_CA", "If set, clients must show a certificate signed by this CA."),
    ] = None
    auth: Annotated[bool, setting("NEXO_AUTH", "Require a user or token for everything.")] = False
    users_file: Annotated[
        Path | None,
        setting("NEXO_USERS_FILE", "Users and permissions, if not `users.json` in `data_dir`."),
    ] = None
    max_payload_bytes: Annotated[
        int,
        Meta(ge=KIB, le=GIB),
        setting("MAX_PAYLOAD_SIZE", "Largest frame accepted, in bytes."),
    ] = 10 * MIB
    max_connections: Annotated[
        Count, setting("NEXO_MAX_CONNECTIONS", "Connections at once, to each broker.")
    ] = 20_000
    max_silent_connections: Annotated[
        Count,
        setting(
            "NEXO_MAX_SILENT_CONNECTIONS",
            "Connections of one address that have sent nothing yet; the oldest gives way.",
        ),
    ] = 10_000
    max_in_flight: Annotated[
        Count, setting("NEXO_MAX_IN_FLIGHT", "Unanswered requests of one connection.")
    ] = 100_000
    idle_ping_ms: Annotated[
        PositiveMillis,
        setting("NEXO_IDLE_PING_MS", "Ping a silent client after this; drop it after twice this."),
    ] = 30_000
    busy_poll_us: Annotated[
        int,
        Meta(ge=0, le=10_000),
        setting(
            "NEXO_BUSY_POLL_US",
            "Busy-poll this long for the next request while they follow closely; 0: never.",
        ),
    ] = 400
    write_buffer_bytes: Annotated[
        int,
        Meta(ge=KIB, le=GIB),
        setting("NEXO_WRITE_BUFFER_BYTES", "Unsent bytes per connection before it counts as slow."),
    ] = MIB
    stop_ms: Annotated[
        int,
        Meta(ge=100, le=_LONGEST_MS),
        setting(
            "NEXO_STOP_MS", "A stopping broker that makes no progress for this long is killed."
        ),
    ] = 4_000
    disk_reserve_bytes: Annotated[
        Bytes, setting("NEXO_DISK_RESERVE_BYTES", "Writes are refused below this much free space.")
    ] = 64 * MIB
    flush_ms: Annotated[
        PositiveMillis,
        setting("STREAM_DEFAULT_FLUSH_MS", "Longest time a `file_async` write waits for its sync."),
    ] = 50
    flush_messages: Annotated[
        Count,
        setting("STREAM_FLUSH_MESSAGES", "Records that trigger a `file_async` sync early."),
    ] = 5_000
    max_open_files: Annotated[
        int,
        Meta(ge=8, le=_MOST),
        setting("STREAM_MAX_OPEN_FILES", "Log files kept open at once."),
    ] = 256
    segment_bytes: Annotated[
        AtLeastKib, setting("NEXO_SEGMENT_BYTES", "Size of a log segment.")
    ] = 64 * MIB
    retention_ms: Annotated[
        Millis, setting("STREAM_RETENTION_MS", "Default age limit of stream records; 0 for none.")
    ] = 7 * DAY_MS
    retention_bytes: Annotated[
        Bytes, setting("STREAM_RETENTION_BYTES", "Default size limit of a stream; 0 for none.")
    ] = GIB
    retention_check_ms: Annotated[
        int,
        Meta(ge=10, le=_LONGEST_MS),
        setting("STREAM_RETENTION_CHECK_MS", "How often retention is checked."),
    ] = 600_000
    hot_ms: Annotated[
        Millis,
        setting(
            "STREAM_HOT_MS",
            "With tiering, the log keeps what is younger, whatever the limits; 0 for none.",
        ),
    ] = HOUR_MS
    hot_messages: Annotated[
        CountOrZero,
        setting(
            "STREAM_HOT_MESSAGES",
            "It also keeps this many messages per partition; 0 for none.",
        ),
    ] = 10_000
    stream_unsynced_bytes: Annotated[
        AtLeastKib,
        setting(
            "STREAM_MAX_UNSYNCED_BYTES",
            "Published bytes that may wait for their sync before producers are refused.",
        ),
    ] = 256 * MIB
    group_ack_wait_ms: Annotated[
        PositiveMillis,
        setting(
            "STREAM_ACK_WAIT_MS",
            "Default time that a record delivered to a shared group may take to be acked.",
        ),
    ] = 30_000
    group_max_deliveries: Annotated[
        CountOrZero,
        setting(
            "STREAM_MAX_DELIVERIES",
            "Default deliveries of a shared group before a record is parked; 0: no limit.",
        ),
    ] = 5
    group_max_ack_pending: Annotated[
        Count,
        setting(
            "STREAM_MAX_ACK_PENDING",
            "Default for the most records of a shared group delivered and not yet settled.",
        ),
    ] = 10_000
    auto_create_streams: Annotated[
        bool,
        setting(
            "STREAM_AUTO_CREATE",
            "Create a stream with the default options when something is first published to it.",
        ),
    ] = False
    stream_cdc: Annotated[
        bool, setting("STREAM_CDC", "Record every produce and commit on the system stream `$cdc`.")
    ] = False
    store_max_bytes: Annotated[
        Bytes,
        setting(
            "STORE_MAX_BYTES", "Memory budget of the store; 0 for none. Over it, LRU eviction."
        ),
    ] = 0
    classic_ttl_ms: Annotated[
        Millis,
        setting(
            "STORE_TTL_MS",
            "How long keys last that came without a TTL from clients without HELLO; 0: for ever.",
        ),
    ] = 0
    store_snapshot_ms: Annotated[
        Millis,
        setting(
            "STORE_SNAPSHOT_MS",
            "How often the store is saved to disk; 0 for at a planned stop only.",
        ),
    ] = 0
    retained_ttl_ms: Annotated[
        Millis,
        setting(
            "PUBSUB_DEFAULT_RETAINED_TTL_MS",
            "How long retained messages last that came without a TTL from clients without HELLO.",
        ),
    ] = HOUR_MS
    subscriber_queue_messages: Annotated[
        Count, setting("PUBSUB_SUBSCRIBER_QUEUE", "Messages kept for a slow subscriber.")
    ] = 1_000
    subscriber_queue_bytes: Annotated[
        AtLeastKib, setting("PUBSUB_SUBSCRIBER_QUEUE_BYTES", "Bytes kept for a slow subscriber.")
    ] = 8 * MIB
    classic_batch: Annotated[
        int,
        Meta(ge=1, le=MAX_POP),
        setting(
            "QUEUE_DEFAULT_BATCH_SIZE",
            "Jobs at once for clients without HELLO that do not say how many.",
        ),
    ] = 50
    classic_wait_ms: Annotated[
        Millis,
        setting(
            "QUEUE_DEFAULT_WAIT_MS",
            "How long clients without HELLO wait for jobs if they do not say.",
        ),
    ] = 20_000
    auto_create_queues: Annotated[
        bool, setting("NEXO_AUTO_CREATE_QUEUES", "Let the first push or pop of a queue create it.")
    ] = False
    queue_visibility_ms: Annotated[
        LeaseMillis,
        setting("QUEUE_VISIBILITY_TIMEOUT_MS", "Default lease of a job."),
    ] = 30_000
    queue_max_retries: Annotated[
        Retries,
        setting("QUEUE_MAX_RETRIES", "Default retries of a job."),
    ] = 5
    queue_persistence: Annotated[
        Persistence,
        setting(
            "QUEUE_PERSISTENCE", "Default durability of a queue; `replicated` needs `replicate`."
        ),
    ] = Persistence.FILE_SYNC
    stream_persistence: Annotated[
        Persistence,
        setting(
            "STREAM_PERSISTENCE", "Default durability of a stream; `replicated` needs `replicate`."
        ),
    ] = Persistence.FILE_ASYNC
    retained_persistence: Annotated[
        Persistence,
        setting(
            "PUBSUB_RETAINED_PERSISTENCE",
            "Durability of retained messages; `replicated` needs `replicate`.",
        ),
    ] = Persistence.FILE_ASYNC
    replicate: Annotated[
        str,
        setting(
            "NEXO_REPLICATE",
            "Object store to replicate to: `s3://`, `gs://`, `az://` or `file:///`, with a prefix.",
        ),
    ] = ""
    replicate_ms: Annotated[
        int,
        Meta(ge=10, le=60_000),
        setting(
            "NEXO_REPLICATE_MS",
            "Longest time before a write that nobody waits for is sent to the store.",
        ),
    ] = 250
    replicate_wait_ms: Annotated[
        int,
        Meta(ge=100, le=600_000),
        setting(
            "NEXO_REPLICATE_WAIT_MS",
            "How long a `replicated` write waits for the store before it fails.",
        ),
    ] = 10_000
    replicate_lease_ms: Annotated[
        int,
        Meta(ge=500, le=600_000),
        setting(
            "NEXO_REPLICATE_LEASE_MS",
            "A leader that has not renewed its lease for this long is replaced by a standby.",
        ),
    ] = 3_000
    replicate_keep_ms: Annotated[
        Millis, setting("NEXO_REPLICATE_KEEP_MS", "How far back `nexo restore --at` can go.")
    ] = DAY_MS
    replicate_address: Annotated[
        str,
        setting(
            "NEXO_REPLICATE_ADDRESS",
            "`host:port` where clients reach this server, which standbys pass on to them.",
        ),
    ] = ""
    replicate_key_file: Annotated[
        Path | None,
        setting(
            "NEXO_REPLICATE_KEY_FILE",
            "Encrypts every object with the key in this file: 32 bytes in base64, on all servers.",
        ),
    ] = None

    @property
    def queue_options(self) -> QueueOptions:
        """Options of a queue that is created without any."""
        return QueueOptions(
            visibility_timeout_ms=self.queue_visibility_ms,
            max_retries=self.queue_max_retries,
            persistence=self.queue_persistence,
        )

    @property
    def stream_options(self) -> StreamOptions:
        """Options of a stream that is created without any."""
        return StreamOptions(
            persistence=self.stream_persistence,
            retention_ms=self.retention_ms,
            retention_bytes=self.retention_bytes,
        )

    @property
    def group_options(self) -> SharedOptions:
        """Options of a shared group that is created without any."""
        return SharedOptions(
            ack_wait_ms=self.group_ack_wait_ms,
            max_deliveries=self.group_max_deliveries,
            max_ack_pending=self.group_max_ack_pending,
        )

    @property
    def lake_folder(self) -> Path:
        """The folder of the lake, unless a catalog says otherwise."""
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
        """The folder of ``broker``'s data."""
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


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
