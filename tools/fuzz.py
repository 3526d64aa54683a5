"""Fuzz every decoder: ``tools/fuzz.py [--seconds N] [--target NAME] [--guided]``.

By itself it mutates sound input, reproducibly by seed. With ``--guided`` the atheris package
steers one target by coverage and keeps what it finds in the corpus. An input that lets
anything but a refusal escape is written to the corpus's ``crashes`` and ends the run.
"""

from __future__ import annotations

import argparse
import logging
import random
import resource
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "property" / "corpus"
sys.path.insert(0, str(ROOT))


def main() -> int:
    """Entry point."""
    options = _options()
    logging.disable(logging.CRITICAL)  # damaged files are reported, a million times
    if options.guided:
        _guided(options.target or "requests", options.seconds)
        return 0
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
    return parser.parse_args()


def _fuzz(name: str, target: object, options: argparse.Namespace) -> int:
    from tests.property.fuzz_targets import Target  # noqa: PLC0415
    from tests.property.mutations import mutated  # noqa: PLC0415

    assert isinstance(target, Target)
    source, seeds = random.Random(f"{name} {options.seed}"), [*target.seeds, *corpus(name)]
    before, cases, end = _peak_kib(), 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        data = mutated(source, seeds)
        cases += 1
        try:
            target(data)
        except Exception:
            _keep_crash(name, data)
            print(f"{name:<18} {cases:>9,} {'':>9}  FAILED, kept in {CORPUS / 'crashes'}")
            traceback.print_exc()
            return 1
    print(f"{name:<18} {cases:>9,} {(_peak_kib() - before) // 1024:>9}  ok", flush=True)
    return 0


def corpus(name: str) -> list[bytes]:
    """Inputs that an earlier guided run found worth keeping."""
    return [path.read_bytes() for path in sorted((CORPUS / name.replace(" ", "-")).glob("*"))]


def _keep_crash(name: str, data: bytes) -> None:
    folder = CORPUS / "crashes"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name.replace(' ', '-')}-{abs(hash(data)):x}").write_bytes(data)


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _guided(name: str, seconds: float) -> None:
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415

    with atheris.instrument_imports(include=["nexo"]):
        from tests.property.fuzz_targets import every_target  # noqa: PLC0415
    target, folder = every_target()[name], CORPUS / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (folder / f"seed-{number:03}").write_bytes(seed)
    arguments = [sys.argv[0], str(folder), f"-max_total_time={int(seconds)}", "-max_len=4096"]
    atheris.Setup([*arguments, f"-artifact_prefix={CORPUS}/crash-"], target)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
