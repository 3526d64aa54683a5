"""``python -m benchmarks.profile [path …]``: where the time of the hot paths goes.

Client and server run in one loop, so one profile has both. Without
arguments every path is profiled. The profiler makes small functions look dearer than they
are: it says where to look, `benchmarks.guard` and the rows say whether it helped.
"""

# ruff: noqa: A005 - reads well behind ``python -m``

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.paths import PATHS, HotPath, ground
from nexo.server.loop import run_loop
from nexo.storage.disk.files import OsFiles

_PROFILED_S = 1.0


def main() -> None:
    """Profile what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("paths", nargs="*", help=f"of: {', '.join(PATHS)}")
    parser.add_argument("--lines", type=int, default=3, help="lines per path")
    parser.add_argument("--seconds", type=float, default=_PROFILED_S, help="per path")
    asked = parser.parse_args()
    if unknown := set(asked.paths) - set(PATHS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    for name in asked.paths or PATHS:
        calls, stats = run_loop(profiled(PATHS[name], asked.seconds))
        show(PATHS[name], calls, stats, asked.lines)


async def profiled(path: HotPath, seconds: float) -> tuple[int, pstats.Stats]:
    """Run a path under the profiler; how often, and what it saw."""
    async with ground(partial(OsFiles, 256)) as on:
        once = await path.prepare(on)
        await once()
        profile, calls, end = cProfile.Profile(), 0, time.monotonic() + seconds
        profile.enable()
        while time.monotonic() < end:
            await once()
            calls += 1
        profile.disable()
    return calls, pstats.Stats(profile)


def first_lines(stats: pstats.Stats, count: int) -> list[tuple[str, float, float]]:
    """The functions with most time of their own: name, share of all time, calls."""
    table: dict[tuple[str, int, str], Any] = stats.stats  # type: ignore[attr-defined]
    total = sum(own for _, _, own, _, _ in table.values()) or 1.0
    ordered = sorted(table.items(), key=lambda item: item[1][2], reverse=True)
    return [(_named(place), own / total, calls) for place, (_, calls, own, _, _) in ordered[:count]]


def _named(place: tuple[str, int, str]) -> str:
    file, line, function = place
    if file == "~":
        return function.strip("<>").removeprefix("built-in method ").removeprefix("method ")
    _, found, inside = Path(file).as_posix().rpartition("/src/nexo/")
    return f"{inside if found else Path(file).name}:{line} {function}"


def show(path: HotPath, calls: int, stats: pstats.Stats, lines: int) -> None:
    """Print the first lines of a path."""
    print(f"{path.name}: {path.what} ({calls:,} times)")
    for name, share, count in first_lines(stats, lines):
        print(f"  {share:5.1%}  {count / calls:8.1f} calls  {name}")


if __name__ == "__main__":
    main()
