"""librdkafka's tests, from a checkout in which they are compiled: `COMPAT_LIBRDKAFKA`."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from compat.suite import Ending, Result, Results, Suite, Unavailable, checkout

VERSION = "2.16.0"
_SECONDS = 180
_NEEDS = re.compile(r"mock|sockem|performance|interactive")


def run(port: int) -> Results:
    """Each test in a process of its own, as one that fails may end it."""
    tests = checkout("COMPAT_LIBRDKAFKA") / "tests"
    if not (tests / "test-runner").exists():
        raise Unavailable(f"there is no {tests / 'test-runner'}: compile it there")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "test.conf"
        config.write_text(f"bootstrap.servers=127.0.0.1:{port}\n")
        return {number: _run_one(tests, number, config) for number in _numbers(tests)}


def _numbers(tests: Path) -> list[str]:
    """Tests that talk to a broker, as far as their sources tell."""
    chosen = os.environ.get("COMPAT_LIBRDKAFKA_TESTS", "").replace(",", " ").split()
    files = sorted([*tests.glob("[0-9]*.c"), *tests.glob("[0-9]*.cpp")])
    numbers = [file.name[:4] for file in files if not _NEEDS.search(file.name)]
    return [number for number in numbers if not chosen or number in chosen]


def _run_one(tests: Path, number: str, config: Path) -> Result:
    variables = {
        "TESTS": number, "RDKAFKA_TEST_CONF": str(config), "TEST_KAFKA_VERSION": "4.0.0",
        "LD_LIBRARY_PATH": "../src:../src-cpp",
    }  # fmt: skip
    try:
        done = subprocess.run(
            ["./test-runner", "-p1", "-Q"], cwd=tests, env=os.environ | variables,
            capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Result(Ending.FAILED, f"not over after {_SECONDS} s")
    said = done.stdout + done.stderr
    if done.returncode:
        return Result(Ending.FAILED, _reason(said))
    return Result(Ending.PASSED if f"{number}" in said and "PASSED" in said else Ending.SKIPPED)


def _reason(said: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said)
    found = re.search(r"^### Test .*?: ###\n(.*)", plain, re.MULTILINE)
    return found[1].strip()[:200] if found else "no reason given"


SUITE = Suite("librdkafka", VERSION, run, {"KAFKA_NUM_PARTITIONS": "4"})
