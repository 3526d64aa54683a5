"""Fuzz every decoder: ``tools/fuzz.py [--seconds N | --minutes N] [--target NAME] [--guided]``.

By itself it mutates sound input, reproducibly by seed. With ``--guided`` the atheris package
steers one target by coverage; what it finds is kept in ``tests/property/corpus``. An input that
lets anything but a refusal escape is written to ``fuzz-crashes`` and ends the run.

``--minutes`` is the long form: so many minutes for every entrance (`fuzz_targets.ENTRANCES`), half
of them guided if atheris is there, in ``--workers`` processes. It notes what is done in
``fuzz-results.json``, goes on from there when started again, and prints one table.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import logging
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRASHES = ROOT / "fuzz-crashes"
RESULTS = ROOT / "fuzz-results.json"
SLICE_S = 60.0
sys.path.insert(0, str(ROOT))


def main() -> int:
    """Entry point."""
    options = _options()
    logging.disable(logging.CRITICAL)  # damaged files are reported, a million times
    if options.folder:
        _guided_worker(options.target, options.seconds, options.folder)
    if options.guided:
        return _guided(options.target or "connection", options.seconds)
    if options.minutes:
        return _for_long(options.minutes, options.workers, options.seed)
    from tests.property.fuzz_targets import every_target  # noqa: PLC0415 - after the path is set

    targets = every_target()
    names = [options.target] if options.target else sorted(targets)
    print(f"{'decoder':<18} {'cases':>9} {'MiB more':>9}  result")
    return sum(_fuzz(name, targets[name], options) for name in names)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="time for each decoder")
    parser.add_argument("--minutes", type=float, default=0, help="time for each entrance")
    parser.add_argument("--workers", type=int, default=1, help="processes of the long form")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", help="only this one")
    parser.add_argument("--guided", action="store_true", help="by coverage, with atheris")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def _fuzz(name: str, target: object, options: argparse.Namespace) -> int:
    from tests.property.fuzz_targets import Target  # noqa: PLC0415
    from tests.property.kept_inputs import load  # noqa: PLC0415
    from tests.property.mutations import mutated  # noqa: PLC0415

    assert isinstance(target, Target)
    source, seeds = random.Random(f"{name} {options.seed}"), [*target.seeds, *load(name)]
    before, cases, end = _peak_kib(), 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        data = mutated(source, seeds)
        cases += 1
        try:
            target(data)
        except Exception:
            _keep_crash(name, data)
            print(f"{name:<18} {cases:>9,} {'':>9}  FAILED, kept in {CRASHES.name}")
            traceback.print_exc()
            return 1
    print(f"{name:<18} {cases:>9,} {(_peak_kib() - before) // 1024:>9}  ok", flush=True)
    return 0


def _keep_crash(name: str, data: bytes) -> None:
    CRASHES.mkdir(exist_ok=True)
    digest = hashlib.sha256(data).hexdigest()[:12]
    (CRASHES / f"{name.replace(' ', '-')}-{digest}").write_bytes(data)


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _guided(name: str, seconds: float) -> int:
    """The fuzzer ends its process, so it gets one of its own; then its finds are packed."""
    from tests.property.kept_inputs import load, save  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(load(name)):
            (Path(folder) / f"{number:04}").write_bytes(data)
        command = [sys.executable, __file__, "--target", name, "--seconds", str(seconds)]
        done = subprocess.run([*command, "--folder", folder], check=False)
        save(name, [path.read_bytes() for path in Path(folder).iterdir()])
    return done.returncode


def _guided_worker(name: str, seconds: float, folder: str) -> None:
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415

    with atheris.instrument_imports(include=["nexo"]):
        from tests.property.fuzz_targets import every_target  # noqa: PLC0415
    target = every_target()[name]
    CRASHES.mkdir(exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (Path(folder) / f"seed-{number:03}").write_bytes(seed)
    arguments = [
        sys.argv[0],
        folder,
        f"-max_total_time={int(seconds)}",
        "-max_len=4096",
        "-rss_limit_mb=1024",
    ]
    atheris.Setup([*arguments, f"-artifact_prefix={CRASHES}/"], target)
    atheris.Fuzz()


# -- the long form ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slice:
    """A stretch of one decoder's time, in a process of its own."""

    target: str
    guided: bool
    number: int
    seconds: float

    def run(self, seed: int) -> Done:
        """Fuzz; every slice has a seed of its own."""
        command = [sys.executable, __file__, "--target", self.target]
        command += ["--seconds", str(self.seconds), "--seed", str(seed * 1_000 + self.number)]
        done = subprocess.run(
            command + ["--guided"] * self.guided, capture_output=True, text=True, check=False
        )
        said = done.stdout + done.stderr
        if done.returncode:
            print(said[-4_000:], flush=True)
        found = re.findall(r"Done ([\d,]+) runs|^.{18} +([\d,]+) .*ok$", said, re.MULTILINE)
        cases = int("".join(found[-1]).replace(",", "")) if found else 0
        return Done(self, cases, done.returncode != 0)


@dataclass(frozen=True)
class Done:
    """What a slice came to."""

    slice: Slice
    cases: int
    crashed: bool


def _for_long(minutes: float, workers: int, seed: int) -> int:
    from tests.property.fuzz_targets import ENTRANCES  # noqa: PLC0415 - after the path is set

    done = _resumed()
    known = {one.slice for one in done}
    left = [one for one in _slices(minutes, ENTRANCES) if one not in known]
    with ThreadPoolExecutor(workers) as pool:
        for one in pool.map(lambda part: part.run(seed), left):
            done.append(one)
            RESULTS.write_text(json.dumps([asdict(each) for each in done]))
            print(f"{one.slice.target}: {one.cases:,} cases", flush=True)
    _print_table(done, ENTRANCES)
    return int(any(one.crashed for one in done))


def _resumed() -> list[Done]:
    if not RESULTS.exists():
        return []
    return [
        Done(**(row | {"slice": Slice(**row["slice"])})) for row in json.loads(RESULTS.read_text())
    ]


def _slices(minutes: float, entrances: dict[str, list[str]]) -> Iterator[Slice]:
    ways = (False, True) if importlib.util.find_spec("atheris") else (False,)
    for targets in entrances.values():
        share = minutes * 60 / len(targets) / len(ways)
        count = max(1, round(share / SLICE_S))
        for target in targets:
            for guided in ways:
                for number in range(count):
                    yield Slice(target, guided, number, share / count)


def _print_table(done: list[Done], entrances: dict[str, list[str]]) -> None:
    print("\n| entrance | decoders | minutes | of them guided | cases | crashes |")
    print("|---|---|---:|---:|---:|---:|")
    for entrance, targets in entrances.items():
        mine = [one for one in done if one.slice.target in targets]
        guided = sum(one.slice.seconds for one in mine if one.slice.guided) / 60
        total, cases = sum(one.slice.seconds for one in mine) / 60, sum(one.cases for one in mine)
        crashes = sum(one.crashed for one in mine)
        print(
            f"| {entrance} | {', '.join(targets)} | {total:.1f} | {guided:.1f} | {cases:,} "
            f"| {crashes} |"
        )


if __name__ == "__main__":
    sys.exit(main())
