"""The options of a queue, and the limits every queue obeys."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from nexo.model import Persistence
from nexo.options.described import merged
from nexo.options.option import option

MAX_PRIORITY = 255
MAX_DELAY_MS = 10 * 366 * 86_400_000
"""Ten years: longer delays are nearly always a unit mistake."""
MAX_POP = 10_000
"""Most jobs one pop may ask for."""
MAX_REASON_CHARS = 2_000
"""Reasons are cut to this: they live in memory and in every snapshot."""
MAX_HISTORY = 10
"""Failures remembered per job."""

LeaseMillis = Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)]
Retries = Annotated[int, Meta(ge=0, le=1_000_000)]
Burst = Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)]
DelayMillis = Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)]
PerSecond = Annotated[float, Meta(ge=0, le=1e9)]


class Backoff(enum.StrEnum):
    """How the wait before a retry grows."""

    NONE = "none"
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class QueueOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of one queue. All can be changed while it runs (SPEC D1).

    Each is described, for user interfaces that ask for it (SPEC K3).
    """

    visibility_timeout_ms: Annotated[
        LeaseMillis,
        option("How long a popped job is leased.", title="Lease", usual=True),
    ] = 30_000
    max_retries: Annotated[
        Retries,
        option(
            "A job is delivered once and this often again, then dead.", title="Retries", usual=True
        ),
    ] = 5
    persistence: Annotated[
        Persistence,
        option(
            "file_sync answers once a job is synced to disk, file_async once it is written, "
            "replicated once the object store has it too.",
            title="Durability",
            usual=True,
        ),
    ] = Persistence.FILE_SYNC
    backoff: Annotated[
        Backoff, option("How the wait before a retry grows.", title="Back-off", usual=True)
    ] = Backoff.NONE
    backoff_delay_ms: Annotated[
        DelayMillis, option("The wait before a retry, or before the first.", title="Back-off wait")
    ] = 1_000
    backoff_max_ms: Annotated[
        DelayMillis, option("Where an exponential wait stops growing.", title="Longest back-off")
    ] = 3_600_000
    backoff_jitter: Annotated[
        float,
        Meta(ge=0, le=1),
        option("Share of an exponential wait that is random, 0 to 1.", title="Back-off jitter"),
    ] = 0.2
    fair: Annotated[
        bool,
        option("Take turns between the keys of waiting jobs instead of strict age.", title="Fair"),
    ] = False
    key_concurrency: Annotated[
        DelayMillis,
        option("Most jobs of one key at work at once; 0 for no limit.", title="Jobs per key"),
    ] = 0
    rate: Annotated[
        PerSecond,
        option("Most deliveries per second; 0 for no limit.", title="Rate", unit="per second"),
    ] = 0.0
    rate_burst: Annotated[
        Burst,
        option("Deliveries at once after a pause, where the rate is limited.", title="Burst"),
    ] = 1
    key_rate: Annotated[
        PerSecond,
        option(
            "Most deliveries of one key; 0 for no limit.", title="Rate per key", unit="per second"
        ),
    ] = 0.0
    key_rate_burst: Annotated[
        Burst, option("The same for one key, where its rate is limited.", title="Burst per key")
    ] = 1
    result_ttl_ms: Annotated[
        DelayMillis, option("How long results are kept; 0 keeps none.", title="Keep results")
    ] = 0
    time_limit_ms: Annotated[
        DelayMillis,
        option(
            "A handler that runs longer loses its job to another; 0 for no limit.",
            title="Time limit",
        ),
    ] = 0
    max_jobs: Annotated[
        DelayMillis,
        option(
            "Pushes are refused while this many jobs are in the queue; 0 for no limit.",
            title="Most jobs",
        ),
    ] = 0

    def retry_wait_ms(self, failures: int, jitter: float) -> int:
        """How long a job waits after its ``failures``-th failure; ``jitter`` is random in 0..1."""
        match self.backoff:
            case Backoff.NONE:
                return 0
            case Backoff.FIXED:
                return self.backoff_delay_ms
        # 2**62 is past every cap; a larger exponent would only build a huge number.
        full = min(self.backoff_max_ms, self.backoff_delay_ms << min(failures - 1, 62))
        return round(full * (1 - self.backoff_jitter * jitter))

    @property
    def by_key(self) -> bool:
        """Whether jobs of different keys wait in lines of their own."""
        return self.fair or self.key_concurrency > 0 or self.key_rate > 0


_OLD_NAMES = {
    "visibility_ms": "visibility_timeout_ms",
    "backoff_ms": "backoff_delay_ms",
    "rate_per_s": "rate",
    "key_rate_per_s": "key_rate",
}
"""Names that version 0.1.0 wrote to its files."""


def options(given: dict[str, Any], base: QueueOptions | None = None) -> QueueOptions:
    """``base`` (or the defaults) with ``given`` on top; `InvalidOption` names what is wrong."""
    return merged(given, base or QueueOptions(), "queue")


def read_options(stored: dict[str, Any]) -> QueueOptions:
    """Options as a file holds them, of this or an earlier version."""
    named = {_OLD_NAMES.get(name, name): value for name, value in stored.items()}
    return msgspec.convert(named, QueueOptions)
