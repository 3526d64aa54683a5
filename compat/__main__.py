"""``python -m compat [--write] [SUITE ...]``: runs other projects' suites, and compares.

The exit status is 1 if a test fails that passed before. ``--write`` keeps what was found, and
writes it into the page on compatibility.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from compat import celery, franz_go, kafka_python, kombu, ledger, librdkafka
from compat.server import serving
from compat.suite import PYTHON, ROOT, WORK, Ending, Results, Suite, Unavailable

SUITES = (
    librdkafka.SUITE, kafka_python.SUITE, franz_go.SUITE, kombu.SUITE, celery.SUITE,
)  # fmt: skip
_PACKAGES = (
    f"celery=={celery.VERSION}", f"kombu=={kombu.VERSION}", "pytest==8.4.2", "pytest-celery==1.3.0",
    "pytest-rerunfailures==16.7", "pytest-subtests==0.15.0", "pytest-timeout==2.4.0",
    "pytest-click==1.1.0", "pytest-order==1.3.0", "redis", "msgpack", "pyyaml", "pydantic",
    "django", "cryptography", "lz4", "zstandard", "python-snappy", "crc32c",
)  # fmt: skip


def main() -> int:
    """Run the suites that are named, or all."""
    parser = argparse.ArgumentParser(prog="compat", description=__doc__)
    parser.add_argument("suites", nargs="*", help="by default all: " + ", ".join(_names()))
    parser.add_argument("--write", action="store_true", help="keep what is found")
    given = parser.parse_args()
    if unknown := set(given.suites) - set(_names()):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}")
    _install()
    expected, failures = ledger.read(), 0
    for suite in SUITES:
        if given.suites and suite.name not in given.suites:
            continue
        try:
            with serving(suite.settings) as port:
                results = suite.run(port)
        except Unavailable as missing:
            print(f"{suite.name}: skipped: {missing}")
            continue
        known = expected.get(suite.name)
        failures += _report(suite, known, results)
        if given.write:
            ledger.write(ledger.read() | {suite.name: ledger.updated(suite, known, results)})
    return 1 if failures else 0


def _names() -> list[str]:
    return [suite.name for suite in SUITES]


def _install() -> None:
    """Make an environment for the suites, which want other versions than our own tests."""
    if PYTHON.exists() and (WORK / "installed").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(WORK / "venv")], check=True)
    install = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *_PACKAGES, "--editable", f"{ROOT}[server,celery]"], check=True)
    (WORK / "installed").touch()


def _report(suite: Suite, known: ledger.Expected | None, results: Results) -> int:
    """Say what was found; returns how many tests fail that passed before."""
    counts = {each: sum(one.ending is each for one in results.values()) for each in Ending}
    shown = ", ".join(f"{count} {each.value}" for each, count in counts.items())
    print(f"{suite.name} {suite.version}: {shown}")
    broken = ledger.broken(known, results)
    for name, message in broken.items():
        print(f"  fails, and passed before: {name}: {message}")
    for name in ledger.mended(known, results):
        print(f"  passes, and is not known to: {name}")
    return len(broken)


if __name__ == "__main__":
    sys.exit(main())
