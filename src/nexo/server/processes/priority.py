"""Who gets the processor first when there is not enough of it."""

from __future__ import annotations

import os

BEHIND = 10
"""Niceness of what runs beside the brokers: about a tenth of a broker's share when both want it."""


def stand_behind_brokers() -> None:
    """For a process that serves people or the lake: requests of clients go first (SPEC K3)."""
    os.nice(BEHIND)
