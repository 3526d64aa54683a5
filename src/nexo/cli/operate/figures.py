"""Computes the screen of ``nexo top`` from the brokers' figures at two moments."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nexo.errors import Forbidden, NexoError
from nexo.options.units import size_text

BrokerFigures = Mapping[str, Any]

_FLOWS = {
    "store": ("commands", None),
    "pubsub": ("published", "delivered"),
    "queue": ("pushed_total", "finished_total"),
    "stream": ("published", None),
}
"""Per broker, the counters of what comes in and what goes out."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Every broker's status at one moment; an error instead of one that did not answer."""

    time_s: float
    brokers: Mapping[str, BrokerFigures | NexoError]


def broker_rows(before: Sample, now: Sample) -> Iterator[dict[str, Any]]:
    """One row per broker."""
    for name, status in now.brokers.items():
        earlier = before.brokers.get(name)
        if isinstance(status, NexoError):
            no_answer = f"no answer: {status.message}"
            holds = "forbidden" if isinstance(status, Forbidden) else no_answer
            yield {"broker": name, "holds": holds, "up": False}
        else:
            known = status if earlier is None or isinstance(earlier, NexoError) else earlier
            yield _broker_row(name, known, status, now.time_s - before.time_s)


def _broker_row(
    name: str, before: BrokerFigures, now: BrokerFigures, elapsed_s: float
) -> dict[str, Any]:
    taken, given = _FLOWS[name]
    process, disk = now.get("process", {}), now.get("disk", {})
    spent = process.get("cpu_s", 0) - before.get("process", {}).get("cpu_s", 0)
    return {
        "broker": name,
        "up": True,
        "in_per_s": rate(before, now, taken, elapsed_s),
        "out_per_s": None if given is None else rate(before, now, given, elapsed_s),
        "connections": now.get("connections", 0),
        "cpu_percent": round(100 * spent / elapsed_s, 1) if elapsed_s > 0 else 0.0,
        "rss_bytes": process.get("rss_bytes", 0),
        "sync_ms": disk.get("sync_ms", 0.0),
        "holds": _holds(name, now),
    }


def rate(before: BrokerFigures, now: BrokerFigures, counter: str, elapsed_s: float) -> int:
    """How fast a counter rises; a restart of the broker counts as a start from zero."""
    then, value = before.get(counter, 0), now.get(counter, 0)
    grown = value - then if value >= then else value
    return round(grown / elapsed_s) if elapsed_s > 0 else 0


def _holds(name: str, status: BrokerFigures) -> str:
    match name:
        case "store":
            return f"{_counted(status, 'keys')}, {size_text(status['used_bytes'])}"
        case "pubsub":
            lost = f", {status['dropped']:,} dropped" if status["dropped"] else ""
            return f"{_counted(status, 'subscriptions')}, {status['retained']:,} retained{lost}"
        case "queue":
            names = ("waiting", "scheduled", "working", "dead")
            return ", ".join(f"{status[state]:,} {state}" for state in names)
    return f"{_counted(status, 'streams')}, {_counted(status, 'groups')}"


def _counted(status: BrokerFigures, things: str) -> str:
    number = status[things]
    return f"{number:,} {things if number != 1 else things[:-1]}"


class Board:
    """Rows of one kind by name, each with the rates since it was last seen."""

    def __init__(self, counters: Mapping[str, str]) -> None:
        """``counters`` maps a rate to the counter that it is made of."""
        self._counters = counters
        self._rows: dict[tuple[str, ...], tuple[float, dict[str, Any]]] = {}
        self._unseen: set[tuple[str, ...]] = set()

    def see(self, key: tuple[str, ...], row: BrokerFigures, now_s: float) -> None:
        """One row now."""
        before_s, before = self._rows.get(key, (now_s, row))
        rates = {
            name: rate(before, row, counter, now_s - before_s)
            for name, counter in self._counters.items()
        }
        self._rows[key] = now_s, {**row, **rates}
        self._unseen.discard(key)

    def end_round(self) -> None:
        """All there is was seen: forget the rest."""
        for key in self._unseen:
            del self._rows[key]
        self._unseen = set(self._rows)

    def top(self, limit: int, *by: str) -> list[dict[str, Any]]:
        """The rows with the highest numbers under these names."""
        rows = (row for _, row in self._rows.values())
        return heapq.nlargest(limit, rows, key=lambda row: [row[name] for name in by])
