"""A killed server's run folder is removed by the next one, a living server's never."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nexo.server.processes.folders import RunFolder, remove_stale

OWNER = (
    "from nexo.server.processes.folders import RunFolder\n"
    "print(RunFolder().path, flush=True)\n"
    "input()\n"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_server_is_removed_and_a_living_ones_is_not(temporary: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as owner:
        assert owner.stdout is not None
        path = Path(owner.stdout.readline().strip())
        (path / "store.sock").touch()
        remove_stale()
        assert (path / "store.sock").exists()
        owner.kill()
        owner.wait()
        own = RunFolder()
    assert list(temporary.iterdir()) == [own.path]
    own.close()
    assert not list(temporary.iterdir())


def test_what_is_no_run_folder_stays(temporary: Path) -> None:
    data, kept = temporary / "nexo-data", temporary / "elsewhere"
    data.mkdir()
    kept.mkdir()
    (temporary / "nexo-run-link").symlink_to(kept)
    (temporary / "nexo-run-file").touch()
    before = sorted(temporary.iterdir())
    remove_stale()
    assert sorted(temporary.iterdir()) == before


def test_a_folder_taken_for_stale_before_its_lock_is_made_anew(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other server comes between the making and the opening, then between it and the lock."""
    make, lock = tempfile.mkdtemp, fcntl.flock
    made: list[Path] = []

    def mkdtemp(prefix: str) -> str:
        made.append(Path(make(prefix=prefix)))
        if len(made) == 1:
            remove_stale()
        return str(made[-1])

    def flock(fd: int, operation: int) -> None:
        if len(made) == 2 and made[1].exists():
            made[1].rmdir()
        lock(fd, operation)

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    monkeypatch.setattr(fcntl, "flock", flock)
    own = RunFolder()
    assert own.path == made[2]
    assert list(temporary.iterdir()) == [own.path]
    own.close()
