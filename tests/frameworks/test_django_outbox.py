"""Tasks enter their queue with the transaction that enqueued them, once (SPEC M2)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import transaction
from django_tasks import TaskResultStatus, default_task_backend, task_backends
from opentelemetry.sdk.trace import TracerProvider

import nexo
from nexo import testing
from nexo.client import telemetry
from nexo.integrations.django import outbox
from nexo.integrations.django.clients import close_all
from nexo.integrations.django.models import OutboxTask
from nexo.integrations.opentelemetry import NexoInstrumentor
from tests.frameworks.postgres import postgres
from tests.frameworks.project import jobs
from tests.timing import wait_until

ROOT = Path(__file__).parents[2]
MANAGE = Path(__file__).parent / "project" / "manage.py"
SET_UP = "import django, os, signal; django.setup()\nfrom django.db import transaction\n"
SET_UP += "from tests.frameworks.project import jobs\n"


@pytest.fixture
def table(project: str) -> Iterator[Any]:
    rows = OutboxTask._default_manager
    yield rows
    rows.all().delete()


class Undone(Exception):
    """What makes a transaction roll back."""


def waiting(client: nexo.Client) -> int:
    return sum(queue.waiting for queue in client.queue_infos())


def test_a_rollback_enqueues_nothing(table: Any, client: nexo.Client) -> None:
    with pytest.raises(Undone) as undone, transaction.atomic():
        raise Undone(jobs.add.enqueue(1, 1), table.count())
    result, rows = undone.value.args
    assert rows == 1
    assert (table.count(), client.queues(), list(client.store.keys())) == (0, [], [])
    with pytest.raises(Exception, match=result.id):
        default_task_backend.get_result(result.id)


def test_a_rolled_back_savepoint_enqueues_nothing_of_its_own(
    table: Any, client: nexo.Client
) -> None:
    with transaction.atomic():
        jobs.mail.enqueue("kept")
        with pytest.raises(Undone), transaction.atomic():
            raise Undone(jobs.mail.enqueue("undone"))
    (job,) = client.queue("django/mails").pop(10)
    assert job.value["args"] == ["kept"]


def test_a_commit_enqueues_at_once_and_in_order(table: Any, client: nexo.Client) -> None:
    with transaction.atomic():
        results = [jobs.mail.enqueue(name) for name in ("a", "b", "c")]
        assert client.queues() == []
        assert default_task_backend.get_result(results[0].id).status == TaskResultStatus.READY
    assert [job.value["args"] for job in client.queue("django/mails").pop(10)] == [
        ["a"],
        ["b"],
        ["c"],
    ]
    assert table.count() == 0
    assert default_task_backend.get_result(results[0].id).status == TaskResultStatus.READY


def test_without_a_server_a_task_waits_in_the_outbox(
    table: Any, nexo_server: testing.Server
) -> None:
    nexo_server.stop()
    close_all()
    with transaction.atomic():
        jobs.mail.enqueue("ada")
    assert table.count() == 1
    nexo_server.start()
    assert outbox.relay(task_backends["default"]) == 1
    assert table.count() == 0


def test_a_task_that_the_server_refuses_does_not_hold_up_the_others(
    table: Any, client: nexo.Client
) -> None:
    with transaction.atomic():
        jobs.mail.enqueue("x" * 11_000_000)
        jobs.mail.enqueue("ada")
    (job,) = client.queue("django/mails").pop(10)
    assert job.value["args"] == ["ada"]
    assert [row.failures for row in table.all()] == [1]


def test_a_task_in_the_outbox_keeps_its_trace(table: Any, client: nexo.Client) -> None:
    """SPEC M5: whoever pushes it later, the task belongs to the trace that enqueued it."""
    provider = TracerProvider()
    NexoInstrumentor().instrument(tracer_provider=provider)
    try:
        with (
            provider.get_tracer("test").start_as_current_span("request") as span,
            transaction.atomic(),
        ):
            jobs.mail.enqueue("ada")
    finally:
        NexoInstrumentor().uninstrument()
        telemetry.settings.disabled = False
    (job,) = client.queue("django/mails").pop()
    assert f"{span.get_span_context().trace_id:032x}" in job.headers["traceparent"]


# -- on PostgreSQL, with processes that are killed


@pytest.fixture(scope="module")
def database_host() -> Iterator[str]:
    with postgres() as host:
        migrate: list[str | Path] = [sys.executable, MANAGE, "migrate", "nexo", "-v0"]
        subprocess.run(migrate, check=True, env=environment("", host))
        yield host


def environment(url: str, host: str) -> dict[str, str]:
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.frameworks.project.settings",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "TEST_NEXO_URL": url,
        "TEST_POSTGRES": host,
    }


class Project:
    """The Django project in processes of its own, on PostgreSQL."""

    def __init__(self, url: str, host: str) -> None:
        self.env = environment(url, host)

    def run(self, program: str, variables: Mapping[str, str] | None = None) -> tuple[int, str]:
        """The exit code of a program and what it printed."""
        ended = subprocess.run(
            [sys.executable, "-c", SET_UP + program],
            check=False, env={**self.env, **(variables or {})}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return ended.returncode, ended.stdout

    def rows(self) -> int:
        with psycopg.connect(host=self.env["TEST_POSTGRES"], user="postgres") as connection:
            (count,) = connection.execute("SELECT count(*) FROM nexo_outbox").fetchone() or (0,)
        return int(count)

    @contextmanager
    def worker(self, *args: str) -> Iterator[subprocess.Popen[bytes]]:
        worker = subprocess.Popen([sys.executable, MANAGE, "nexo_worker", *args], env=self.env)
        try:
            yield worker
        finally:
            if worker.poll() is None:
                worker.terminate()
                worker.wait(60)


@pytest.fixture
def remote(url: str, database_host: str) -> Project:
    return Project(url, database_host)


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def test_an_exception_after_enqueue_leaves_nothing_behind(
    remote: Project, client: nexo.Client
) -> None:
    code, _ = remote.run(
        "with transaction.atomic():\n"
        "    jobs.add.enqueue(1, 1)\n"
        "    raise SystemExit(7)\n"
    )  # fmt: skip
    assert code == 7
    assert (remote.rows(), client.queues()) == (0, [])


def test_kill_9_between_commit_and_push_loses_nothing(
    remote: Project, client: nexo.Client, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, _ = remote.run(
        "with transaction.atomic():\n"
        "    transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        f"    jobs.write.enqueue({str(out)!r}, 'once')\n"
    )
    assert code == -signal.SIGKILL
    assert (remote.rows(), client.queues()) == (1, [])
    with remote.worker() as worker:
        wait_until(lambda: lines(out) == ["once"], 60)
        worker.terminate()
        assert worker.wait(60) == 0
    assert (remote.rows(), waiting(client), lines(out)) == (0, 0, ["once"])


def test_a_relay_killed_after_its_push_makes_no_second_job(
    remote: Project, client: nexo.Client, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, _ = remote.run(
        "from nexo.integrations.django.tasks import DjangoTaskBackend\n"
        "push = DjangoTaskBackend.push\n"
        "def push_and_die(*args, **options):\n"
        "    push(*args, **options)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "DjangoTaskBackend.push = push_and_die\n"
        "with transaction.atomic():\n"
        f"    jobs.write.enqueue({str(out)!r}, 'once')\n"
    )
    assert code == -signal.SIGKILL
    assert (remote.rows(), waiting(client)) == (1, 1)
    with remote.worker("--no-relay") as worker:
        wait_until(lambda: lines(out) == ["once"], 60)
        worker.terminate()
        assert worker.wait(60) == 0
    assert remote.rows() == 0, "the worker took it out before it ran the task"
    assert waiting(client) == 0


def test_a_worker_finishes_what_runs_and_gives_back_the_rest(
    remote: Project, client: nexo.Client, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    remote.run(f"jobs.slow.enqueue({str(first)!r}); jobs.slow.enqueue({str(second)!r})")
    with remote.worker("--threads=1", "--queue=default") as worker:
        wait_until(lambda: first.exists() and first.read_text() == "begun", 60)
        worker.terminate()
        assert worker.wait(60) == 0
    assert first.read_text() == "done"
    assert not second.exists()
    wait_until(lambda: waiting(client) == 1)


def test_several_processes_are_kept_running(
    remote: Project, client: nexo.Client, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    remote.run("jobs.die.enqueue()")
    with remote.worker("--processes=2", "--queue=default") as worker:
        queue = client.queue("django/default")
        wait_until(lambda: queue.info().failed_total >= 1, 60)
        remote.run(f"jobs.write.enqueue({str(out)!r}, 'alive')")
        wait_until(lambda: lines(out) == ["alive"], 60)
        worker.terminate()
        assert worker.wait(60) == 0
