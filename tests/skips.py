"""In CI no test may be skipped because the machine lacks something: the run fails and names it.

On a laptop such a test is only skipped. What takes long is skipped everywhere but in `make soak`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LONG = ("SOAK=1", "make soak")
"""One of these is in the reason of a skip for want of time."""


def lacking(reports: Iterable[Any]) -> list[str]:
    """What pytest's reports of skipped tests and modules say is missing."""
    reasons = ((str(path), str(reason)) for path, _, reason in (each.longrepr for each in reports))
    return [
        f"{path}: {reason}" for path, reason in reasons if not any(word in reason for word in LONG)
    ]
