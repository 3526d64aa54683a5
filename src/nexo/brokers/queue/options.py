"""What a queue can be told: its options, and the limits every queue obeys."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

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
    """Options of one queue. All can be changed while it runs (SPEC D1)."""

    visibility_ms: Positive = 30_000
    """How long a popped job is leased."""
    max_retries: Annotated[int, Meta(ge=0, le=1_000_000)] = 5
    """A job is delivered 1 + this many times before it is dead (SPEC D5)."""
    persistence: Persistence = Persistence.FILE_SYNC
    backoff: Backoff = Backoff.NONE
    backoff_ms: Natural = 1_000
    backoff_max_ms: Natural = 3_600_000
    backoff_jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2
    """Share of an exponential wait that is random."""
    fair: bool = False
    """Take turns between the keys of waiting jobs instead of strict age."""
    key_concurrency: Natural = 0
    """Most jobs of one key at work at once; 0 for no limit."""
    rate_per_s: Rate = 0.0
    """Deliveries per second; 0 for no limit."""
    rate_burst: Positive = 1
    key_rate_per_s: Rate = 0.0
    """Deliveries per second of one key; 0 for no limit."""
    key_rate_burst: Positive = 1
    result_ttl_ms: Natural = 0
    """How long results are kept; 0 keeps none."""
    max_jobs: Natural = 0
    """Pushes are refused while this many jobs are in the queue; 0 for no limit."""

    @property
    def by_key(self) -> bool:
        """Whether jobs of different keys wait in lines of their own."""
        return self.fair or self.key_concurrency > 0 or self.key_rate_per_s > 0


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


def retry_wait_ms(rules: QueueOptions, failures: int, luck: float) -> int:
    """How long a job waits after its ``failures``-th failure; ``luck`` is random in 0..1."""
    match rules.backoff:
        case Backoff.NONE:
            return 0
        case Backoff.FIXED:
            return rules.backoff_ms
    # 2**62 is past every cap; a larger exponent would only build a huge number.
    full = min(rules.backoff_max_ms, rules.backoff_ms << min(failures - 1, 62))
    return round(full * (1 - rules.backoff_jitter * luck))


def check_range(what: str, value: int, high: int, low: int = 0) -> int:
    """``value`` if it lies in low..high; `InvalidInput` says what is allowed otherwise."""
    if not low <= value <= high:
        raise InvalidInput(f"{what} {value} is out of range: use {low} to {high}")
    return value
