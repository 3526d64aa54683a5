"""``nexo worker`` with processes, a time limit, reload and a graceful stop (SPEC O6)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nexo
from nexo.client.worker_processes import sources
from tests.timing import wait_until

WAIT_S = 30.0


@pytest.fixture
def client(nexo_url: str) -> Iterator[nexo.Client]:
    with nexo.connect(nexo_url) as connection:
        yield connection


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(nexo_url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts ``nexo worker tasks:work --queue jobs`` with further options."""
    started: list[subprocess.Popen[str]] = []

    def run(*options: str, target: str = "tasks:work") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "nexo", "worker", target, "--queue", "jobs", *options]
        environ = os.environ | {"NEXO_URL": nexo_url, "PYTHONDONTWRITEBYTECODE": "1"}
        worker = subprocess.Popen(
            command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True
        )
        started.append(worker)
        return worker

    yield run
    for worker in started:
        worker.kill()
        worker.wait()
        if worker.stderr is not None:
            worker.stderr.close()


def write(folder: Path, source: str) -> None:
    (folder / "tasks.py").write_text(source)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pid: int) -> None:
    wait_until(lambda: not lives(pid), WAIT_S)


def written(file: Path) -> str:
    wait_until(lambda: file.exists() and file.read_text() != "", WAIT_S)
    return file.read_text()


def pids(queue: nexo.types.Queue[object], count: int) -> set[int]:
    """The processes that work, once there are so many."""
    found: set[int] = set()

    def enough() -> bool:
        found.add(int(queue.result(queue.push(None), wait=WAIT_S)))
        return len(found) >= count

    wait_until(enough, WAIT_S)
    return found


@pytest.mark.timeout(180)
def test_processes_share_the_work_and_one_that_is_killed_is_replaced(
    start: Start, client: nexo.Client, tmp_path: Path
) -> None:
    queue = client.queue("jobs").create(result_ttl=60)
    write(tmp_path, "import os\ndef work(job):\n    return os.getpid()\n")
    worker = start("--processes", "2", "--threads", "1", "--batch", "1")
    first = pids(queue, 2)
    assert worker.pid not in first
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    assert pids(queue, 1).isdisjoint(first)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(WAIT_S) == 0


@pytest.mark.timeout(180)
def test_a_stop_lets_running_jobs_end_and_a_lost_parent_stops_its_processes(
    start: Start, client: nexo.Client, tmp_path: Path
) -> None:
    queue = client.queue("jobs").create(result_ttl=60)
    write(
        tmp_path,
        "import os, pathlib, time\n"
        "def work(job):\n"
        "    pathlib.Path(f'{job.value}.begun').write_text(str(os.getpid()))\n"
        "    while not pathlib.Path(f'{job.value}.go').exists():\n"
        "        time.sleep(0.01)\n"
        "    return 'done'\n",
    )
    for number, end in enumerate((signal.SIGTERM, signal.SIGKILL)):
        worker = start("--processes", "2")
        job = queue.push(number)
        pid = int(written(tmp_path / f"{number}.begun"))
        worker.send_signal(end)
        assert lives(pid)
        (tmp_path / f"{number}.go").touch()
        assert queue.result(job, wait=WAIT_S) == "done"
        assert worker.wait(WAIT_S) == (0 if end == signal.SIGTERM else -signal.SIGKILL)
        gone(pid)


@pytest.mark.timeout(180)
def test_a_changed_source_is_loaded_and_a_broken_one_is_waited_for(
    start: Start, client: nexo.Client, tmp_path: Path
) -> None:
    queue = client.queue("jobs").create(result_ttl=60)
    write(tmp_path, "def other(job):\n    return 'none'\n")
    worker = start("--reload")
    assert worker.stderr is not None
    assert "has no function" in worker.stderr.readline()
    write(tmp_path, "def work(job):\n    return 'old'\n")
    assert queue.result(queue.push(None), wait=WAIT_S) == "old"
    write(tmp_path, "def work(job):\n    return 'newer'\n")
    wait_until(lambda: queue.result(queue.push(None), wait=WAIT_S) == "newer", WAIT_S)


@pytest.mark.timeout(120)
def test_a_handler_beyond_its_time_is_given_up(
    start: Start, client: nexo.Client, tmp_path: Path
) -> None:
    queue = client.queue("jobs").create(max_retries=0)
    write(tmp_path, "import asyncio\nasync def work(job):\n    await asyncio.Event().wait()\n")
    start("--time-limit", "100ms")
    queue.push("hangs")
    wait_until(lambda: len(queue.dlq.peek()) == 1, WAIT_S)


@pytest.mark.timeout(120)
def test_wrong_usage_ends_all_processes(start: Start, client: nexo.Client, tmp_path: Path) -> None:
    client.queue("jobs").create()
    write(
        tmp_path,
        "import nexo\nclient = nexo.Client()\n"
        "@client.queue('jobs').worker()\ndef made(job):\n    pass\n",
    )
    for options, target, said in (
        (("--processes", "2"), "tasks:nothing", "has no function"),
        (("--threads", "2"), "tasks:made", "set concurrency= where it is created"),
    ):
        worker = start(*options, target=target)
        assert worker.wait(WAIT_S) == 2
        assert worker.stderr is not None
        assert said in worker.stderr.read()


def test_hidden_folders_and_caches_are_not_watched(tmp_path: Path) -> None:
    for name in ("a.py", "package/b.py", ".venv/c.py", "__pycache__/d.py", "e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert {Path(file).name for file in sources(tmp_path)} == {"a.py", "b.py"}
