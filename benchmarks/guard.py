"""The regression guard: what each hot path costs, against a stored baseline.

Two figures per path. *Opcodes* are the instructions the interpreter executes, counted by a
trace function: exact, the same on every machine, blind to what happens inside of C. The
*ratio* is CPU time divided by that of a fixed loop in the same process: it sees everything,
with noise. Both are taken several times; the spread says how far apart two runs of the same
code lie, and a change counts from three times that on. Opcodes depend on Python's version,
ratios also on the machine: without the same, they are shown and not judged.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks import machine
from benchmarks.paths import PATHS, HotPath, Work, ground
from nexo.server.loop import run_loop
from tests.memory_files import MemoryFiles

BASELINE = Path(__file__).parent / "baseline.json"
SAMPLES = 7
SAMPLE_S = 0.02
COUNTED = 3
LEAST_TOLERANCE = {"opcodes": 0.03, "ratio": 0.25}
"""A change below this share is none, however quiet the machine was."""
NOISE_FACTOR = 3.0


def check(*, update: bool = False, paths: Sequence[str] = (), file: Path = BASELINE) -> Any:
    """Measure every path, compare with the baseline or become it."""
    names = paths or tuple(PATHS)
    measured = {name: measure(PATHS[name]) for name in names}
    found = {"python": sys.version.split()[0], "cpu": machine.cpu(), "paths": measured}
    if update:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    baseline = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"paths": {}}
    verdicts = compare(baseline, found)
    for name in {v["path"] for v in verdicts if v["verdict"] == "slower"}:
        # Once more: only what is slow twice is slow.
        _keep_best(measured[name], measure(PATHS[name]))
    return found | {"verdicts": compare(baseline, found)}


def _keep_best(first: dict[str, Any], second: dict[str, Any]) -> None:
    for kind in LEAST_TOLERANCE:
        first[kind] = min(first[kind], second[kind], key=lambda figure: figure["median"])


def compare(baseline: dict[str, Any], found: dict[str, Any]) -> list[dict[str, Any]]:
    """One verdict per path and figure."""
    same_python = _minor(baseline.get("python", "")) == _minor(found["python"])
    comparable = {
        "opcodes": same_python,
        "ratio": same_python and baseline.get("cpu") == found["cpu"],
    }
    return [
        _verdict(name, kind, baseline["paths"].get(name), figures, comparable[kind])
        for name, figures in found["paths"].items()
        for kind in LEAST_TOLERANCE
    ]


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _verdict(
    name: str, kind: str, before: dict[str, Any] | None, now: dict[str, Any], comparable: bool
) -> dict[str, Any]:
    figure = now[kind]
    told = {"path": name, "figure": kind, "now": figure["median"], "spread": figure["spread"]}
    if before is None:
        return told | {"verdict": "new"}
    old = before[kind]
    noise = NOISE_FACTOR * max(old["spread"], figure["spread"])
    tolerance = max(LEAST_TOLERANCE[kind], noise)
    change = figure["median"] / old["median"] - 1
    told |= {"baseline": old["median"], "change": change, "tolerance": tolerance}
    if not comparable:
        return told | {"verdict": "not comparable"}
    if abs(change) <= tolerance:
        return told | {"verdict": "same"}
    return told | {"verdict": "slower" if change > 0 else "quicker"}


# -- measuring -------------------------------------------------------------------------


def measure(path: HotPath) -> dict[str, Any]:
    """Both figures of one path."""
    return run_loop(_measure(path))


async def _measure(path: HotPath) -> dict[str, Any]:
    async with ground(MemoryFiles) as on:
        once = await path.prepare(on)
        for _ in range(20):
            await once()
        await _opcodes(once)  # from Python 3.12 on the first count misses code not traced before
        gc.collect()
        gc.disable()
        try:
            return {"opcodes": _summed_up([await _opcodes(once) for _ in range(COUNTED)]),
                    "ratio": _summed_up(await _ratios(once))}  # fmt: skip
        finally:
            gc.enable()


def _summed_up(figures: Sequence[float]) -> dict[str, float]:
    """The median, and how far the middle half of the figures lies apart, as a share of it."""
    median = statistics.median(figures)
    low, _, high = statistics.quantiles(figures, n=4)
    return {"median": float(f"{median:.5g}"), "spread": round((high - low) / median, 4)}


async def _opcodes(once: Work) -> float:
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        await once()
    finally:
        sys.settrace(before)
    return float(count)


async def _ratios(once: Work) -> list[float]:
    """CPU time per call, in turns of the calibration loop beside it."""
    calls = max(1, int(SAMPLE_S / await _cpu_s(once, 1)))
    ratios = []
    for _ in range(SAMPLES):
        before_s = _calibration_s()
        spent_s = await _cpu_s(once, calls) / calls
        ratios.append(spent_s / min(before_s, _calibration_s()))
    return ratios


async def _cpu_s(once: Work, calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        await once()
    return max(time.thread_time() - start, 1e-7)


def _calibration_s() -> float:
    """A loop of what brokers do all day: look up, unpack, slice, join."""
    start = time.thread_time()
    table: dict[int, bytes] = {}
    data = bytes(range(256))
    for number in range(10_000):
        table[number & 255] = data[number & 127 : 200]
        int.from_bytes(data[number & 63 : (number & 63) + 4], "big")
    b"".join(table.values())
    return time.thread_time() - start
