"""Bounds that no setting changes: what a client may take, and how long it may take for it.

Bounds on connections, logins, waits, replies and HTTP are named here, so that one page can list
them and one test can try each (``docs/reference/limits.md``). What a broker stores is bounded in
its own package.
"""

from __future__ import annotations

KIB, MIB = 1024, 1024**2

# -- before a client is known -------------------------------------------------------------

FIRST_BYTES_S = 10.0
"""A connection that has not said what it is for by then is closed, counted from its first byte;
where authentication is on, or only TLS is spoken, from its beginning.
"""
TLS_HANDSHAKE_S = 10.0
"""A TLS handshake that is not done by then is given up."""
LOGIN_S = 10.0
"""A connection that has sent no request by then, or has not
logged in where authentication is on, is closed.
"""
LOCKED_OUT_MS = 10_000
"""How long a client whose logins failed too often cannot log in; each failure begins it again."""
LOCKED_OUT_PAUSE_S = 2.0
"""How long, give or take a half, a login after too many wrong ones waits for its answer; its
connection sends nothing else meanwhile.
"""
BEFORE_LOGIN_BYTES = 16 * KIB
"""The largest request of a client that has not logged in, where authentication is on; no more is
read of what it sends after its login.
"""

# -- connections --------------------------------------------------------------------------

FRAME_BYTES_PER_S = 1 * KIB
"""A request that is sent more slowly than this ends its connection."""
FAREWELL_S = 0.5
"""How long a closing connection waits for a client that reads none of its last replies."""
LONGEST_FAREWELL_S = 2.0
"""How long it waits for one that reads them slowly."""
SETTLING_S = 2.5
"""How long a stopping server lets clients finish the jobs, records and transactions they hold."""
IDLE_SETTLING_S = 1.0
"""It stops earlier if none of them was finished for this long."""
LONGEST_SYNC_S = 60
"""How long a stopping broker may wait for the disk without being killed."""
CLIENT_NAME_CHARS = 128
"""The kept length of the name that a client gives itself."""

# -- other protocols ----------------------------------------------------------------------

PIPELINED_REQUESTS = 1_000
"""Unanswered requests of one client of a protocol that answers in order, such as Kafka's;
the next are not read before some are answered.
"""
LARGE_REQUESTS_BYTES = 256 * MIB
"""The memory of all requests over the usual size that are arriving or unanswered; further ones
wait until there is room. One that keeps others waiting may take `LARGE_REQUEST_BYTES_PER_S`.
"""
LARGE_REQUEST_BYTES_PER_S = 1 * MIB
"""A request over the usual size that is sent more slowly than this, while another waits for its
room, ends its connection.
"""
KAFKA_REQUEST_BYTES = 100 * MIB
"""The largest request of a Kafka client that has logged in, or where authentication is off; a
larger Produce is skipped, and refused partition by partition.
"""
KAFKA_UNPACKED_BYTES = 16 * MIB
"""The records of one batch of a Kafka client after unpacking, if `max_payload_bytes` is not more;
a larger batch is refused with `MESSAGE_TOO_LARGE`.
"""
KAFKA_BATCH_RECORDS = 250_000
"""The records of one batch of a Kafka client; more are refused with `MESSAGE_TOO_LARGE`."""
KAFKA_ELEMENTS = 100_000
"""The elements of all arrays in one request of a Kafka client."""

# -- permissions --------------------------------------------------------------------------

DECISIONS = 4_096
"""Permission checks remembered per login."""
DECISION_NAME_CHARS = 255
"""Longer names are checked again each time."""

# -- replies ------------------------------------------------------------------------------

REPLY_PAYLOADS = 4
"""The values of one reply take at most the bytes of this many requests of the largest size."""
PAGE_BYTES = 1 * MIB
"""A page of names ends with the one that makes it this long."""

# -- requests that wait -------------------------------------------------------------------

QUEUE_WAIT_MS = 3_600_000
"""The longest wait for a job or its end; a longer one is refused."""
LEASE_WAIT_MS = 3_600_000
"""The longest wait for a lease of the store; a longer one ends by then."""
STREAM_WAIT_MS = 600_000
"""The longest wait for records or an assignment; a longer one ends by then."""

# -- the HTTP port ------------------------------------------------------------------------

HTTP_CONNECTIONS = 1_000
"""Connections at once; at the limit, the one that has been silent longest gives way."""
HTTP_CONNECTIONS_PER_ADDRESS = 250
"""The same, of one address."""
HTTP_REQUEST_S = 10.0
"""From the connection, or the last reply on it, to the end of the next request's headers."""
HTTP_BODY_BYTES_PER_S = 64 * KIB
"""A body may take as long as a request's headers, and longer by its bytes at this rate."""
HTTP_LOGIN_BYTES = 8 * KIB
"""The largest login: whoever sends it is not known yet."""
HTTP_LIVE_VIEWS = 256
"""Live views at once: events and web sockets, each with a connection of its own to a broker."""
HTTP_QUERIES = 4
"""SQL queries at once; one more is refused."""
HTTP_QUERY_MEMORY_BYTES = 512 * 1024 * KIB
"""The memory of one query; one that needs more is refused."""
HTTP_QUERY_REPLY_BYTES = 32 * 1024 * KIB
"""The rows of one reply; further ones are left out, and the reply says so."""
SOCKET_SUBSCRIPTIONS = 100
"""Topics and streams that one web socket follows."""
SOCKET_PING_S = 20.0
"""A web socket is pinged this often, and closed if it does not answer for as long."""
SOCKET_FRAME_BYTES = 1 * MIB
"""The largest message that a web socket may send."""
HTTP_LOGINS = 1_000
"""Logins to the dashboard at once; the least recently used ends."""
HTTP_LOGINS_PER_USER = 50
"""The same, of one user."""

# -- probes, and the gate -----------------------------------------------------------------

PROBES = 64
"""Connections to `/health` and `/ready`; at the limit the oldest is closed."""
PROBE_BYTES = 4 * KIB
"""The largest request of a probe."""
PROBE_S = 5.0
"""A probe that has not sent its request by then is closed."""
WAITING_FOR_BROKER = 512
"""Connections that wait for one broker's process. A process that hangs would let its clients,
who reconnect, use up the descriptors that the other brokers need: the oldest is closed."""

# -- replication --------------------------------------------------------------------------

UNSHIPPED_BYTES = 256 * MIB
"""Operations of one broker that wait for the object store. Beyond it they are dropped, since the
disk has them; once the store is back, the broker starts again and uploads what changed."""
LOG_BYTES_PER_BASE = 256 * MIB
"""A base is made after this many bytes of the log, or `LOG_OBJECTS_PER_BASE` objects."""
LOG_OBJECTS_PER_BASE = 10_000
"""A base is made after this many objects of the log, or `LOG_BYTES_PER_BASE` bytes."""
BUCKET_LOOK_S = 20.0
"""How often a leader looks whether the object store still has what a restore needs."""
LAST_PUTS_MS = 3_000
"""How long a stopping broker waits for the object store to take its last writes."""
