"""How long a broker's requests take, from the buckets that its status counts; no I/O."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from nexo.model.histogram import quantile_ms
from nexo.protocol.ops import Op

WINDOW_S = 60
RECENT_S = 10
LONG_POLLS = frozenset(
    op.name.lower()
    for op in (
        Op.Q_CONSUME, Op.Q_POP, Op.Q_JOB, Op.S_FETCH, Op.S_TAKE, Op.S_NEXT, Op.S_READ,
        Op.S_READ_MANY, Op.S_HEARTBEAT, Op.S_X_READ,
    )
)  # fmt: skip
"""Requests that may wait for data: their times say nothing about speed."""
_OWN = frozenset({"q_survey", "s_survey"})
"""Requests of this process itself, every second."""

Buckets = dict[str, list[int]]


class RequestView(msgspec.Struct):
    """The requests of one kind in the last minute."""

    op: str
    count: int
    p50_ms: float | None
    p99_ms: float | None
    waits: bool
    """A long poll, whose time is mostly waiting."""


class RequestTimes:
    """The last minute of one broker."""

    def __init__(self) -> None:
        self._seen: deque[Buckets] = deque(maxlen=WINDOW_S + 1)

    def seen(self, requests: dict[str, dict[str, Any]]) -> None:
        """The ``requests`` of the status, a second after the last."""
        self._seen.append({op: row["buckets"] for op, row in requests.items()})

    def recent(self) -> tuple[float | None, float | None]:
        """p50 and p99 in ms of the last seconds' requests, without those that wait."""
        grown = self._grown(RECENT_S)
        quick = [row for op, row in grown.items() if op not in LONG_POLLS | _OWN]
        total = [sum(column) for column in zip(*quick, strict=True)]
        return quantile_ms(total, 0.5), quantile_ms(total, 0.99)

    def rows(self) -> list[RequestView]:
        """Each kind of request of the last minute, the most frequent first."""
        found = [
            RequestView(
                op, sum(row), quantile_ms(row, 0.5), quantile_ms(row, 0.99), op in LONG_POLLS
            )
            for op, row in self._grown(WINDOW_S).items()
            if any(row) and op not in _OWN
        ]
        return sorted(found, key=lambda row: (-row.count, row.op))

    def _grown(self, seconds: int) -> Buckets:
        """The requests of the last seconds; all of them, if the broker was restarted."""
        if len(self._seen) < 2:
            return {}
        now, then = self._seen[-1], self._seen[max(0, len(self._seen) - 1 - seconds)]
        return {op: _minus(row, then.get(op)) for op, row in now.items()}


def _minus(row: list[int], before: list[int] | None) -> list[int]:
    if before is None:
        return row
    grown = [count - was for count, was in zip(row, before, strict=True)]
    return row if min(grown) < 0 else grown
