"""Runs the simulator: ``python -m tests.simulation [--seeds N] [--seed N] [--hours H]``."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path

if os.environ.get("PYTHONHASHSEED") != "0":  # sets of strings have an order, too
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])

_monotonic = time.monotonic
_ROOT = Path(__file__).parents[2]

from tests.simulation import seams  # noqa: E402, F401 - replaces the clocks first

# isort: split
from tests.simulation import calls, regressions  # noqa: E402
from tests.simulation.forks import Result, Runner  # noqa: E402
from tests.simulation.shrink import ddmin, shorten  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many fresh seeds")
    parser.add_argument("--hours", type=float, default=0.0, help="run for so long instead")
    parser.add_argument("--seed", type=int, help="replay one, with its story, and shrink it")
    parser.add_argument("--first", type=int, help="seeds from this on instead of fresh ones")
    parser.add_argument("--scenario", default="one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--save", metavar="NAME", help="keep what --seed shrinks as a regression")
    parser.add_argument("--regressions", action="store_true", help="run those that are kept")
    parser.add_argument("--calls", metavar="SCRIPT", help="fail each call of a script once")
    parser.add_argument(
        "--stop", metavar="CHECK", default="", help="stop once this has found something"
    )
    parser.add_argument("--areas", metavar="NAMES", help="only seeds with one of these areas")
    parser.add_argument("--cpu-s", type=float, default=math.inf, help="begin no seed after so much")
    given = parser.parse_args()
    if given.regressions:
        return _run_regressions(given.workers)
    if given.calls:
        return _fail_calls(given)
    areas = given.areas.split(",") if given.areas else ()
    runner = Runner(given.scenario, given.workers, stop=given.stop, areas=areas)
    if given.seed is not None:
        return _replay(runner, given)
    return _explore(runner, given)


def _explore(runner: Runner, given: argparse.Namespace) -> int:
    first = given.first if given.first is not None else random.SystemRandom().randrange(1 << 40)
    until_s = _monotonic() + given.hours * 3600 if given.hours else None
    print(f"scenario {given.scenario}, seeds from {first}, source {_source()}", flush=True)
    began_s, checks, runs, ops, cpu_s = _monotonic(), Counter[str](), 0, 0, 0.0
    last = 0
    failed: list[Result] = []
    for result in runner.each(first, None if until_s else given.seeds):
        runs += 1
        ops += result.ops
        cpu_s += result.seconds
        if result.findings:
            failed.append(result)
            first_of = dict(reversed(result.findings))
            checks.update(first_of.keys())
            for check, text in first_of.items():
                print(f"seed {result.seed}: {check}: {text}", flush=True)
            print(f"  make simulate SEED={result.seed} SCENARIO={given.scenario}", flush=True)
            if given.stop in first_of:
                print(json.dumps({"seed": result.seed, "last": result.seed}))
                return 1
        if cpu_s > given.cpu_s or (until_s is not None and _monotonic() > until_s):
            last = result.seed
            break
    took_s = _monotonic() - began_s
    print(
        f"{runs} runs, {ops} operations in {took_s:.0f} s, {cpu_s:.0f} of them of the processor: "
        f"{len(failed)} with findings {dict(checks)}"
    )
    if given.stop:
        print(json.dumps({"seed": 0, "last": last or first + given.seeds - 1}))
    return 1 if failed else 0


def _source() -> str:
    """A hash of the source: with the same one, a seed does the same."""
    digest = sha256()
    for path in sorted([*_ROOT.glob("src/**/*.py"), *_ROOT.glob("tests/simulation/**/*.py")]):
        digest.update(f"{path.relative_to(_ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _replay(runner: Runner, given: argparse.Namespace) -> int:
    seed = given.seed
    result = runner.run(seed, tell=True)
    print(f"hash {result.digest}, {result.events} events, {result.ops} operations")
    print(f"source {_source()}")
    for check, text in result.findings:
        print(f"{check}: {text}")
    if not result.findings or given.no_shrink:
        return 1 if result.findings else 0
    wanted, text = result.findings[0]

    def fails(faults: object) -> bool:
        again = runner.run(seed, faults=list(faults))  # type: ignore[call-overload]
        return any(check == wanted for check, _ in again.findings)

    small = shorten(ddmin(result.faults, fails), fails)
    print(f"{len(result.faults)} faults shrink to {len(small)} for {wanted!r}:")
    for fault in small:
        print(f"  {fault}")
    if given.save:
        assert result.knobs is not None
        kept = regressions.Regression(given.scenario, f"{wanted}: {text}", result.knobs, small)
        regressions.save(regressions.FOLDER / f"{given.save}.json", kept)
    print(json.dumps({"seed": seed, "check": wanted}))
    return 1


def _fail_calls(given: argparse.Namespace) -> int:
    """Some cases of a script, drawn by ``--first``; all with ``--seeds 0``."""
    script = calls.SCRIPTS[given.calls]
    first = given.first if given.first is not None else random.SystemRandom().randrange(1 << 40)
    print(f"calls of {given.calls}, drawn by {first}", flush=True)
    failed, cases, cpu_s = 0, 0, 0.0
    for fault, result in calls.run(script, given.seeds, first):
        cases += 1
        cpu_s += result.seconds
        if result.findings:
            failed += 1
            print(f"{fault}: {': '.join(result.findings[0])}", flush=True)
    print(f"{cases} cases, {cpu_s:.0f} s of the processor: {failed} with findings")
    return 1 if failed else 0


def _run_regressions(workers: int) -> int:
    failed = 0
    for path, result in regressions.failures(workers):
        failed += 1
        check, text = result.findings[0]
        print(f"{path.stem}, seed {result.seed}: {check}: {text}", flush=True)
    print(f"{failed} runs with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
