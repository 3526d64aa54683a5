"""Curves: the same work at growing sizes, with what the machine allows drawn beside it.

A curve prepares one probe per size; a probe measures all lines of the curve at its size.
Rounds go through all sizes in turn, so that a disturbance hits none of them alone. A bar on
a curve compares two sizes of a line and ends up in the table as a row of its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchmarks import report
from benchmarks.harness import (
    ENOUGH_S,
    MORE_ROUNDS,
    ROUNDS,
    STEP_LIMIT_S,
    Bench,
    Contender,
    Outcome,
    Result,
    Row,
    time_limit,
)

Probe: TypeAlias = Callable[[], Mapping[str, float]]
"""Measures one size: the figure of every line."""
Limits: TypeAlias = Mapping[str, float]
"""See `benchmarks.machine.limits`."""


@dataclass(frozen=True)
class Limit:
    """A line that the machine draws: ``figure(limits, x)``."""

    name: str
    figure: Callable[[Limits, float], float]


@dataclass(frozen=True)
class Bar:
    """The cost at the largest size divided by that at ``small`` must stay under ``limit``."""

    name: str
    line: str
    small: int | None = None
    """The size before the largest, if not given."""
    limit: float = 1.5
    durability: str = ""


@dataclass(frozen=True)
class Curve:
    """One chart."""

    name: str
    """Names its file, too."""
    title: str
    x: str
    unit: str
    """Of the figures: a time (lower is better) or something per second."""
    prepare: Callable[[Bench], Mapping[int, Probe]]
    limits: Sequence[Limit] = ()
    bars: Sequence[Bar] = ()
    lower_is_better: bool = False


@dataclass
class Measured:
    """The rounds of a curve: by line, then by size."""

    curve: Curve
    figures: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    failed: str = ""

    def add(self, x: int, found: Mapping[str, float]) -> None:
        for line, figure in found.items():
            self.figures.setdefault(line, {}).setdefault(x, []).append(figure)

    def cost_ratios(self, bar: Bar) -> list[float]:
        """Large over small, round by round, in cost: a rate is turned upside down."""
        points = self.figures[bar.line]
        *_, before, largest = sorted(points)
        small, large = points[bar.small or before], points[largest]
        if self.curve.lower_is_better:
            small, large = large, small
        return [a / b for a, b in zip(small, large, strict=True)]


def run(curve: Curve, *, rounds: int | None = None, quick: bool = False) -> Measured:
    """Measure a curve; what goes wrong is noted in it."""
    measured, bench = Measured(curve), Bench(quick)
    try:
        with time_limit(STEP_LIMIT_S):
            probes = curve.prepare(bench)
        with time_limit(STEP_LIMIT_S):
            for probe in probes.values():
                probe()
        _take_turns(measured, list(probes.items()), rounds)
    except Exception as error:  # the other curves go on
        measured.failed = f"{type(error).__name__}: {error}"
    finally:
        _close(bench, curve)
    return measured


def _take_turns(measured: Measured, probes: list[tuple[int, Probe]], rounds: int | None) -> None:
    start = time.monotonic()
    for number in range(rounds or MORE_ROUNDS):
        if rounds is None and number >= ROUNDS and time.monotonic() - start > ENOUGH_S:
            return
        for x, probe in probes if number % 2 == 0 else reversed(probes):
            with time_limit(STEP_LIMIT_S):
                measured.add(x, probe())


def _close(bench: Bench, curve: Curve) -> None:
    try:
        with time_limit(STEP_LIMIT_S):
            bench.close()
    except Exception as error:  # the figures stand nevertheless
        print(f"  {curve.name} did not end well: {type(error).__name__}: {error}")


# -- results -------------------------------------------------------------------------


def record(measured: Measured, limits: Limits) -> dict[str, Any]:
    """A curve as plain values."""
    curve = measured.curve
    sizes = sorted({x for points in measured.figures.values() for x in points})
    return {
        "name": curve.name,
        "title": curve.title,
        "x": curve.x,
        "unit": curve.unit,
        "lower_is_better": curve.lower_is_better,
        "failed": measured.failed,
        "lines": [
            {"name": line, "points": [_point(x, points[x]) for x in sorted(points)]}
            for line, points in measured.figures.items()
        ],
        "limits": [
            {
                "name": limit.name,
                "points": [{"x": x, "median": limit.figure(limits, x)} for x in sizes],
            }
            for limit in curve.limits
        ],
    }


def _point(x: int, figures: Sequence[float]) -> dict[str, float]:
    return {
        "x": x, "median": statistics.median(figures), "low": min(figures), "high": max(figures),
    }  # fmt: skip


def bar_records(group: str, measured: Measured) -> list[dict[str, Any]]:
    """The bars of a curve as rows of the table."""
    return [_bar_record(group, measured, bar) for bar in measured.curve.bars]


def _bar_record(group: str, measured: Measured, bar: Bar) -> dict[str, Any]:
    outcome = Outcome("nexo", failed=measured.failed)
    if not measured.failed:
        outcome.figures = measured.cost_ratios(bar)
        outcome.client_cpu_s = outcome.server_cpu_s = [0.0] * len(outcome.figures)
    row = Row(
        bar.name, "×", Contender("nexo", _not_run), limit=bar.limit, lower_is_better=True,
        durability=bar.durability,
    )  # fmt: skip
    return report.record(group, Result(row, [outcome]))


def _not_run(_bench: Bench) -> Any:
    raise AssertionError("bars are computed from their curve")
