"""What differs between runs beside the faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Knobs:
    """What differs between runs beside the faults."""

    settings: dict[str, Any] = field(default_factory=dict)
    modules: dict[str, Any] = field(default_factory=dict)
    """Module constants, by ``module:name``."""
    machines: int = 2
    lag_us: tuple[int, int] = (30, 400)
    areas: tuple[str, ...] = ()
    """What the actors are about."""
    bucket_lag_us: tuple[int, int] = (300, 4_000)
    bucket_page: int = 1000
    """Keys that one request of a list gives."""
    skew_s: int = 0
    """How far the second server's clock is ahead."""
    damaged: bool = False
    """Whether the bucket itself may lose objects."""
    faults_s: int = 0
    """How long faults happen, if not as long as the scenario says."""
