"""Schedules that once found something, as files: they stay when seeds mean other things.

A file has the scenario, the knobs and the shrunk faults. It is run with eight seeds, as what the
seed draws beside them (ties, lags, what actors do) may matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.simulation.forks import Result, Runner
from tests.simulation.knobs import Knobs
from tests.simulation.schedule import Fault

FOLDER = Path(__file__).parent / "regressions"
SEEDS = range(1, 9)


@dataclass
class Regression:
    """One of them."""

    scenario: str
    found: str
    """The check that saw it, and what it was."""
    knobs: Knobs
    faults: Sequence[Fault]


def load(path: Path) -> Regression:
    return msgspec.json.decode(path.read_bytes(), type=Regression)


def save(path: Path, one: Regression) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(one), indent=1) + b"\n")


def failures(workers: int, seeds: Sequence[int] = SEEDS) -> Iterator[tuple[Path, Result]]:
    """Each run of each of them that finds something."""
    for path in sorted(FOLDER.glob("*.json")):
        one = load(path)
        runner = Runner(one.scenario, workers)
        for seed in seeds:
            result = runner.run(seed, faults=one.faults, knobs=one.knobs)
            if result.findings:
                yield path, result
