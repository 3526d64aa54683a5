"""Runs `sink_job` in processes of its own, finds them, and kills them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from nexo import testing
from tests.spark import sink_job

BUSY_S = 900
CLUSTER = "local-cluster[2,1,1024]"


def started(
    served: testing.Process,
    folder: Path,
    scenario: str,
    master: str,
    kill: tuple[str, int] | None = None,
    **settings: int,
) -> subprocess.Popen[str]:
    """The job, whose processes are a group and a session of their own.

    ``settings`` are ``rows`` and ``rounds``.
    """
    given = {f"SINK_JOB_{name.upper()}": str(number) for name, number in settings.items()}
    lake = str(served.data_dir / "lake")
    environment = (
        os.environ | given | {"SINK_JOB_LAKE": lake, "PYTHONPATH": f"{Path.cwd()}:{Path.cwd()}/src"}
    )
    script = "import os, runpy, sys\n"
    if kill is not None:
        counter = folder / f"count {kill[0]}"
        script += (
            f"os.environ['SINK_JOB_KILL'] = {kill[0]!r} + '\\n{kill[1]}\\n' + {str(counter)!r}"
            " + '\\n' + str(os.getpgrp())\n"
        )
    script += f"sys.argv[0] = {sink_job.__file__!r}\n"
    script += "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    command = [sys.executable, "-c", script, served.url, master, scenario, str(folder)]
    with (folder / "said").open("w") as said:
        job = subprocess.Popen(
            command, text=True, stdout=said, stderr=said, start_new_session=True, env=environment
        )
    job.said = folder / "said"  # type: ignore[attr-defined]
    return job


def finish(job: subprocess.Popen[str]) -> str:
    """What a job says at its end."""
    try:
        job.wait(BUSY_S - 100)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    return Path(job.said).read_text()  # type: ignore[attr-defined]


def executors(served: testing.Process) -> list[int]:
    """The processes of a job's executors, which a cluster may have started."""
    return running(served, b"CoarseGrainedExecutorBackend")


def running(served: testing.Process, text: bytes) -> list[int]:
    """The processes of a server's jobs whose command line has that text."""
    found, mark = [], f"SINK_JOB_LAKE={served.data_dir / 'lake'}".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_bytes() and mark in (path.parent / "environ").read_bytes():
                found.append(int(path.parent.name))
        except (OSError, ProcessLookupError):
            continue
    return sorted(found)
