"""Runs unit, contract and integration tests on every supported Python but the one of this run.

Each interpreter gets a virtual environment of its own beside the first. Which versions are
supported stands in `pyproject.toml`; newer ones that are found are tested as well. A supported
version that this machine lacks is named, and is a failure in CI.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
NEWEST = 20
"""The largest minor version that is looked for."""
SUITES = ("tests/unit", "tests/property", "tests/contract", "tests/integration")


def supported() -> list[str]:
    """The versions that the package's metadata promises."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.compile(r"Programming Language :: Python :: (3\.\d+)$")
    return [match[1] for each in project["classifiers"] if (match := named.match(each))]


def version_of(python: Path | str) -> str | None:
    """An interpreter's version, None if it does not start, as pyenv's stand-ins may not."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        reply = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return reply.stdout.strip() if reply.returncode == 0 else None


def found(oldest: int = 11) -> dict[str, str]:
    """The interpreters of this machine by version: on the path, else of pyenv."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    interpreters: dict[str, str] = {}
    for minor in range(oldest, NEWEST + 1):
        name = f"python3.{minor}"
        for candidate in (shutil.which(name), *sorted(kept.glob(f"*/bin/{name}"), reverse=True)):
            if candidate is not None and version_of(candidate) == f"3.{minor}":
                interpreters[f"3.{minor}"] = str(candidate)
                break
    return interpreters


def passes(version: str, python: str, extras: str, workers: str) -> bool:
    """Whether the suites pass on one interpreter, whose environment is made first.

    What fails is run once more, alone.
    """
    place = {**os.environ, "VENV": f".venv-{version}", "PYTHON": python}
    prepared = subprocess.run(["tools/setup", "python", extras], cwd=ROOT, env=place, check=False)
    if prepared.returncode:
        return False
    pytest = [
        f".venv-{version}/bin/python", "-m", "pytest", "--quiet", "--hypothesis-profile", "quick",
        "--override-ini", f"cache_dir=build/pytest-{version}", *SUITES,
    ]  # fmt: skip
    spread = ["--numprocesses", workers, "--dist", "loadfile"]
    again = ["--last-failed", "--last-failed-no-failures", "none"]
    runs = (subprocess.run([*pytest, *how], cwd=ROOT, check=False) for how in (spread, again))
    return any(run.returncode == 0 for run in runs)


def main() -> int:
    """Exit code 1 if a suite failed, or in CI a supported version is not here."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--extras", required=True, help="extras of the package to install")
    parser.add_argument("--workers", default="2", help="tests that run at the same time")
    given = parser.parse_args()
    own = "{}.{}".format(*sys.version_info)
    others = {version: python for version, python in found().items() if version != own}
    missing = [each for each in supported() if each != own and each not in others]
    failed = [
        version
        for version, python in others.items()
        if not passes(version, python, given.extras, given.workers)
    ]
    for version in others:
        print(f"Python {version}: {'failed' if version in failed else 'passed'}")
    for version in missing:
        print(f"Python {version}: not on this machine")
    return int(bool(failed) or bool(missing and os.environ.get("CI") == "true"))


if __name__ == "__main__":
    sys.exit(main())
