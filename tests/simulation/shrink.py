"""Makes a failing schedule small: first fewer faults (ddmin), then shorter ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.simulation.schedule import Fault

T = TypeVar("T")


def ddmin(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """A part of ``items`` that still fails, of which no single piece can be left out."""
    left = list(items)
    if not left or fails([]):
        return []
    pieces = 2
    while len(left) > 1:
        size = -(-len(left) // pieces)
        for start in range(0, len(left), size):
            rest = left[:start] + left[start + size :]
            if rest and fails(rest):
                left, pieces = rest, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(left), pieces * 2)
    return left


def shorten(faults: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool]) -> list[Fault]:
    """Halve the durations as long as it still fails."""
    left = list(faults)
    for at, fault in enumerate(left):
        while abs(fault.for_ns) > 10_000_000:
            shorter = replace(fault, for_ns=fault.for_ns // 2)
            if not fails([*left[:at], shorter, *left[at + 1 :]]):
                break
            left[at] = shorter
        del fault
    return left
