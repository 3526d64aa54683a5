"""Makes a release: builds both packages, checks them in empty environments, and tags.

Each extra is installed from the wheel, on every supported Python that this machine has, and what it
is for is imported; the server is started, written to and read. Nothing is uploaded: the tag does
that (`.github/workflows/release.yml`).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.pythons import found, supported

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"

SERVES = """
import nexo, nexo.testing
with nexo.testing.process() as server, nexo.connect(server.url) as client:
    client.store.set("a", 1)
    client.queue("q").create().push("job")
    client.stream("s").create().publish("record")
    assert client.store.get("a") == 1
    assert client.queue("q").pop(wait=5).values() == ["job"]
    assert [record.value for record in client.stream("s").read(0)] == ["record"]
"""
"""A first hour in six lines."""
PROGRAMS = {
    "": "import nexo, nexo.topics, nexo.xstreams",
    "server": SERVES,
    "cli": "import nexo.cli",
    "sql": "import duckdb, nexo.sql.engine",
    "spark": "import pyspark_nexo",
    "compress": "import nexo.batch.compression, lz4, zstandard, cramjam",
    "kafka": "import aiokafka",
    "redis": "import redis",
    "replication": "import nexo.replication.stores",
    "celery": "import nexo.integrations.celery",
    "taskiq": "import nexo.integrations.taskiq",
    "dramatiq": "import nexo.integrations.dramatiq",
    "flask": "import nexo.integrations.flask",
    "pydantic": "import pydantic, nexo",
    "fastapi": "import fastapi, nexo.integrations.asgi",
    "starlette": "import nexo.integrations.asgi",
    "django": "import nexo.integrations.django.cache, nexo.integrations.django.tasks",
    "channels": "import nexo.integrations.django.channels",
    "otel": "import nexo.integrations.opentelemetry",
    "protobuf": "import google.protobuf.message, nexo",  # used with the extra sql
}
"""A program for each extra, which runs where only the wheel and this extra are installed."""


def version() -> str:
    """What is released."""
    text = (ROOT / "src" / "nexo" / "version.py").read_text()
    named = re.search(r'__version__ = "([^"]+)"', text)
    assert named is not None
    return named[1]


def problems(wanted: str) -> list[str]:
    """Why this tree cannot be released."""
    reasons = []
    if _git("status", "--porcelain"):
        reasons.append("there are changes that are not committed")
    if f"v{wanted}" in _git("tag", "--list").split():
        reasons.append(f"v{wanted} is tagged already: a version number is never used twice")
    changes = (ROOT / "CHANGELOG.md").read_text()
    if not re.search(rf"^## {re.escape(wanted)} \(\d{{4}}-\d\d-\d\d\)$", changes, re.MULTILINE):
        reasons.append(f"CHANGELOG.md has no section `## {wanted} (YYYY-MM-DD)`")
    return reasons


def built() -> Path:
    """The wheel, made from the sdist; both are in ``dist/``."""
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", DIST, ROOT], check=True)
    (wheel,) = DIST.glob("*.whl")
    return wheel


def works(wheel: Path, python: str, extra: str) -> bool:
    """Whether an extra's program runs in an environment that has nothing else."""
    with tempfile.TemporaryDirectory(prefix="nexo-release-") as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        inside = f"{folder}/bin/python"
        asked = f"{wheel}[{extra}]" if extra else f"{wheel}"
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", asked]
        if subprocess.run([inside, *pip], check=False).returncode:
            return False
        run = [inside, "-c", PROGRAMS[extra]]
        return subprocess.run(run, check=False, cwd=folder, timeout=120).returncode == 0


def failures(wheel: Path, extras: list[str]) -> list[str]:
    """Which extras do not work, on which Python; one line each is printed."""
    failed = []
    here = {name: python for name, python in found().items() if name in supported()}
    for name, python in here.items():
        for extra in extras:
            label = f"Python {name}, nexo-broker{f'[{extra}]' if extra else ''}"
            passed = works(wheel, python, extra)
            print(f"{label}: {'works' if passed else 'FAILS'}", flush=True)
            failed += [] if passed else [label]
    return failed


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


def main() -> int:
    """Exit code 1 if something is in the way of a release."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="build and check, but do not tag")
    parser.add_argument("--extras", default=",".join(PROGRAMS), help="only these, with commas")
    given = parser.parse_args()
    wanted = version()
    reasons = [] if given.check else problems(wanted)
    for reason in reasons:
        print(reason, file=sys.stderr)
    if reasons or failures(built(), given.extras.split(",")):
        return 1
    if given.check:
        print(f"{wanted} can be released")
        return 0
    _git("tag", "--annotate", f"v{wanted}", "--message", f"Nexo {wanted}")
    print(f"tagged; `git push origin v{wanted}` publishes it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
