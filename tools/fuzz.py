"""Fuzz every decoder: ``tools/fuzz.py [--seconds N] [--target NAME] [--guided]``.

By itself it mutates sound input, reproducibly by seed. With ``--guided`` the atheris package
steers one target by coverage; what it finds is kept in ``tests/property/corpus``. An input that
lets anything but a refusal escape is written to ``fuzz-crashes`` and ends the run.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRASHES = ROOT / "fuzz-crashes"
sys.path.insert(0, str(ROOT))


def main() -> int:
    """Entry point."""
    options = _options()
    logging.disable(logging.CRITICAL)  # damaged files are reported, a million times
    if options.folder:
        _guided_worker(options.target, options.seconds, options.folder)
    if options.guided:
        return _guided(options.target or "requests", options.seconds)
    from tests.property.fuzz_targets import every_target  # noqa: PLC0415 - after the path is set

    targets = every_target()
    names = [options.target] if options.target else sorted(targets)
    print(f"{'decoder':<18} {'cases':>9} {'MiB more':>9}  result")
    return sum(_fuzz(name, targets[name], options) for name in names)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="time for each decoder")
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
    arguments = [sys.argv[0], folder, f"-max_total_time={int(seconds)}", "-max_len=4096"]
    atheris.Setup([*arguments, f"-artifact_prefix={CRASHES}/"], target)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
