"""What a queue can be told: its options, and the limits every queue obeys."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from nexo.brokers.described import option
from nexo.config import Settings
from nexo.errors import InvalidInput, InvalidOption
from nexo.model import Persistence
from nexo.protocol.refusals import in_words

MAX_PRIORITY = 255
MAX_DELAY_MS = 10 * 366 * 86_400_000
"""Ten years: longer delays are nearly always a unit mistake."""
MAX_POP = 10_000
"""Most jobs one pop may ask for."""
MAX_WAIT_MS = 3_600_000
MAX_ERROR_CHARS = 2_000
"""Error texts are cut to this: they live in memory and in every snapshot."""
MAX_HISTORY = 10
"""Failures remembered per job."""

Positive = Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)]
Natural = Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)]
Rate = Annotated[float, Meta(ge=0, le=1e9)]


class Backoff(enum.StrEnum):
    """How the wait before a retry grows."""

    NONE = "none"
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class QueueOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of one queue. All can be changed while it runs (SPEC D1).

    Each says what it is, for whoever is asked for it (SPEC K3).
    """

    visibility_ms: Annotated[
        Positive,
        option("Lease", "How long a popped job is leased.", "ms", usual=True),
    ] = 30_000
    max_retries: Annotated[
        int,
        Meta(ge=0, le=1_000_000),
        option("Retries", "A job is delivered once and this often again, then dead.", usual=True),
    ] = 5
    persistence: Annotated[
        Persistence,
        option(
            "Durability",
            "file_sync answers once a job is synced to disk, file_async once it is written.",
            usual=True,
        ),
    ] = Persistence.FILE_SYNC
    backoff: Annotated[
        Backoff, option("Back-off", "How the wait before a retry grows.", usual=True)
    ] = Backoff.NONE
    backoff_ms: Annotated[
        Natural, option("Back-off wait", "The wait before a retry, or before the first.", "ms")
    ] = 1_000
    backoff_max_ms: Annotated[
        Natural, option("Longest back-off", "Where an exponential wait stops growing.", "ms")
    ] = 3_600_000
    backoff_jitter: Annotated[
        float,
        Meta(ge=0, le=1),
        option("Back-off jitter", "Share of an exponential wait that is random, 0 to 1."),
    ] = 0.2
    fair: Annotated[
        bool,
        option("Fair", "Take turns between the keys of waiting jobs instead of strict age."),
    ] = False
    key_concurrency: Annotated[
        Natural,
        option("Jobs per key", "Most jobs of one key at work at once; 0 for no limit."),
    ] = 0
    rate_per_s: Annotated[
        Rate, option("Rate", "Most deliveries per second; 0 for no limit.", "per second")
    ] = 0.0
    rate_burst: Annotated[
        Positive, option("Burst", "Deliveries at once after a pause, where the rate is limited.")
    ] = 1
    key_rate_per_s: Annotated[
        Rate,
        option("Rate per key", "Most deliveries of one key; 0 for no limit.", "per second"),
    ] = 0.0
    key_rate_burst: Annotated[
        Positive, option("Burst per key", "The same for one key, where its rate is limited.")
    ] = 1
    result_ttl_ms: Annotated[
        Natural, option("Keep results", "How long results are kept; 0 keeps none.", "ms")
    ] = 0
    max_jobs: Annotated[
        Natural,
        option(
            "Most jobs",
            "Pushes are refused while this many jobs are in the queue; 0 for no limit.",
        ),
    ] = 0

    @property
    def by_key(self) -> bool:
        """Whether jobs of different keys wait in lines of their own."""
        return self.fair or self.key_concurrency > 0 or self.key_rate_per_s > 0


def defaults(settings: Settings) -> QueueOptions:
    """Options of a queue that is created without any."""
    return QueueOptions(settings.queue_visibility_ms, settings.queue_max_retries)


def options(given: dict[str, Any], base: QueueOptions | None = None) -> QueueOptions:
    """``base`` (or the defaults) with ``given`` on top; `InvalidOption` names what is wrong."""
    merged = msgspec.to_builtins(base or QueueOptions()) | given
    try:
        return msgspec.convert(merged, QueueOptions)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"queue options: {in_words(error, QueueOptions)}") from None


def differences(now: QueueOptions, asked: QueueOptions) -> str:
    """Which options of a queue are not as asked for."""
    return ", ".join(
        f"{name}: {getattr(now, name)}, not {getattr(asked, name)}"
        for name in now.__struct_fields__
        if getattr(now, name) != getattr(asked, name)
    )


def retry_wait_ms(rules: QueueOptions, failures: int, jitter: float) -> int:
    """How long a job waits after its ``failures``-th failure; ``jitter`` is random in 0..1."""
    match rules.backoff:
        case Backoff.NONE:
            return 0
        case Backoff.FIXED:
            return rules.backoff_ms
    # 2**62 is past every cap; a larger exponent would only build a huge number.
    full = min(rules.backoff_max_ms, rules.backoff_ms << min(failures - 1, 62))
    return round(full * (1 - rules.backoff_jitter * jitter))


def check_range(what: str, value: int, high: int, low: int = 0) -> int:
    """``value`` if it lies in low..high; `InvalidInput` says what is allowed otherwise."""
    if not low <= value <= high:
        raise InvalidInput(f"{what} {value} is out of range: use {low} to {high}")
    return value
