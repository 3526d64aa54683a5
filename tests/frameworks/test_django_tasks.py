"""Django's documented contract of task backends on queues (SPEC M2)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.core.management import CommandError, call_command
from django.test import override_settings
from django.utils import timezone
from django_tasks import TaskResultStatus, default_task_backend, task_backends
from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist, TaskResultMismatch
from django_tasks.signals import task_enqueued, task_finished, task_started

import nexo
from nexo.errors import InvalidOption
from nexo.integrations.django.worker import TaskWorker
from tests.frameworks.project import jobs, manage
from tests.timing import wait_until


@pytest.fixture(autouse=True)
def forget_what_ran() -> None:
    jobs.ran.clear()


@contextmanager
def working(alias: str = "default", *queues: str, threads: int = 2) -> Iterator[TaskWorker]:
    worker = TaskWorker(alias, queues or ("default",), threads, relays=False)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(20)


def finished(result: Any) -> Any:
    def ended() -> bool:
        result.refresh()
        return bool(result.is_finished)

    wait_until(ended)
    return result


def test_a_task_runs_and_its_result_can_be_asked_for(project: str) -> None:
    result = jobs.add.enqueue(2, b=3)
    assert result.status == TaskResultStatus.READY
    assert (result.args, result.kwargs, result.attempts) == ([2], {"b": 3}, 0)
    assert default_task_backend.get_result(result.id).status == TaskResultStatus.READY
    with working() as worker:
        finished(result)
    assert result.return_value == 5
    assert result.worker_ids == [worker.id]
    assert result.enqueued_at <= result.started_at <= result.finished_at
    found = jobs.add.get_result(result.id)
    assert (found.return_value, found.args, found.kwargs) == (5, [2], {"b": 3})
    with pytest.raises(TaskResultMismatch):
        jobs.mail.get_result(result.id)


async def test_async_tasks_and_the_async_interface(project: str) -> None:
    result = await jobs.aadd.aenqueue(1, 2)
    with working():
        async with asyncio.timeout(20):
            while not result.is_finished:
                await result.arefresh()
    assert result.return_value == 3
    assert (await jobs.aadd.aget_result(result.id)).return_value == 3


def test_a_failure_is_kept_with_its_traceback_and_as_a_dead_letter(
    project: str, client: nexo.Client
) -> None:
    result = jobs.fail.enqueue("no such order")
    with working():
        finished(result)
    assert result.status == TaskResultStatus.FAILED
    (error,) = result.errors
    assert error.exception_class is ValueError
    assert "no such order" in error.traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
    assert jobs.ran == ["no such order"], "it is not tried again unless RETRIES says so"
    wait_until(lambda: client.queue("django/default").info().dead == 1)
    (letter,) = client.queue("django/default").dlq.peek()
    assert letter.reason == "ValueError: no such order"


def test_retries_count_attempts(project: str) -> None:
    result = jobs.attempts.using(backend="stubborn").enqueue(3)
    with working("stubborn"):
        finished(result)
    assert (result.return_value, result.attempts, len(result.errors)) == (3, 3, 2)


def test_retries_end(project: str) -> None:
    result = jobs.fail.using(backend="stubborn").enqueue("x")
    with working("stubborn"):
        finished(result)
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 3)
    assert jobs.ran == ["x"] * 3


def test_higher_priority_runs_first(project: str) -> None:
    order = [jobs.add.using(priority=p).enqueue(p, 0) for p in (-100, 0, 100, 5)]
    with working(threads=1):
        for result in order:
            finished(result)
    assert [a for a, _ in jobs.ran] == [100, 5, 0, -100]


def test_a_deferred_task_waits_in_the_queue(project: str, client: nexo.Client) -> None:
    later = jobs.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 1)
    soon = jobs.add.using(run_after=timezone.now() + timedelta(milliseconds=300)).enqueue(2, 2)
    assert client.queue("django/default").info().scheduled == 2
    with working():
        finished(soon)
    assert soon.started_at >= soon.task.run_after
    later.refresh()
    assert later.status == TaskResultStatus.READY
    assert later.task.run_after > timezone.now()
    with override_settings(USE_TZ=False):
        naive = jobs.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(3, 3)
        assert default_task_backend.get_result(naive.id).task.run_after == naive.task.run_after


def test_queues_are_served_as_asked(project: str, client: nexo.Client) -> None:
    mail = jobs.mail.enqueue("ada")
    other = jobs.add.enqueue(1, 1)
    (view,) = client.queue("django/mails").peek()
    assert (view.priority, view.value["task"]) == (107, "tests.frameworks.project.jobs.mail")
    with working("default", "mails"):
        finished(mail)
    other.refresh()
    assert other.status == TaskResultStatus.READY


def test_a_worker_whose_queue_is_deleted_ends_and_says_so(
    project: str, client: nexo.Client
) -> None:
    task = jobs.add.enqueue(1, 2)

    def delete_once_it_is_served() -> None:
        finished(task)
        client.queue("django/default").delete()

    deleting = threading.Thread(target=delete_once_it_is_served)
    deleting.start()
    with pytest.raises(CommandError, match="a queue is no longer served"):
        call_command("nexo_worker", "--queue=default", "--no-relay")
    deleting.join()


def test_bad_tasks_are_refused_and_nothing_is_enqueued(project: str, client: nexo.Client) -> None:
    with pytest.raises(InvalidTaskError):
        jobs.add.using(queue_name="unknown")
    with pytest.raises(InvalidTaskError):
        jobs.add.using(priority=101)
    with pytest.raises(TypeError):
        jobs.add.enqueue(object(), 1)
    assert client.queues() == []
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result("unknown")


def test_a_task_of_another_project_fails_and_does_not_stop_the_worker(
    project: str, client: nexo.Client
) -> None:
    first = jobs.add.enqueue(1, 2)
    queue = client.queue("django/default")
    (view,) = queue.peek()
    queue.push({**view.value, "id": "a" * 32, "task": "os.getcwd"})
    queue.push({"nonsense": 1})
    with working():
        finished(first)
        wait_until(lambda: queue.info().dead == 2)
    errors = sorted(letter.reason for letter in queue.dlq.peek())
    assert errors[0] == "ImportError: os.getcwd is not a task"
    assert errors[1].startswith("this is no task")


def test_signals_tell_of_each_step(project: str) -> None:
    told: list[tuple[str, Any]] = []

    def enqueued(task_result: Any, **_: Any) -> None:
        told.append(("enqueued", task_result.status))

    def started(task_result: Any, **_: Any) -> None:
        told.append(("started", task_result.status))

    def ended(task_result: Any, **_: Any) -> None:
        told.append(("finished", task_result.return_value))

    task_enqueued.connect(enqueued)
    task_started.connect(started)
    task_finished.connect(ended)
    try:
        result = jobs.add.enqueue(1, 1)
        with working():
            finished(result)
    finally:
        task_enqueued.disconnect(enqueued)
        task_started.disconnect(started)
        task_finished.disconnect(ended)
    assert told == [
        ("enqueued", TaskResultStatus.READY),
        ("started", TaskResultStatus.RUNNING),
        ("finished", 2),
    ]


def test_options_are_checked(project: str) -> None:
    backend = task_backends["default"]
    assert (backend.supports_defer, backend.supports_async_task) == (True, True)
    assert (backend.supports_get_result, backend.supports_priority) == (True, True)
    with pytest.raises(InvalidOption, match="unknown OPTIONS: URI"):
        type(backend)("x", {"OPTIONS": {"URI": project}})
    with pytest.raises(InvalidOption, match="OUTBOX is one of"):
        type(backend)("x", {"OPTIONS": {"OUTBOX": "sometimes"}})
    assert list(backend.check()) == []
    with override_settings(INSTALLED_APPS=["django_tasks"]):
        (warning,) = type(backend)("x", {}).check()
    assert isinstance(warning, checks.Warning)


def test_without_results_nothing_is_kept_in_the_store(project: str, client: nexo.Client) -> None:
    backend = type(task_backends["default"])(
        "default", {"OPTIONS": {"URL": project, "RESULT_TTL": 0}}
    )
    backend.enqueue(jobs.add, (1, 1), {})
    assert not backend.supports_get_result
    assert list(client.store.keys()) == []


NOTE = """
import time
from pathlib import Path
from django_tasks import task

@task
def note(path):
    with Path(path).open("a") as file:
        file.write("VERSION\\n")
    time.sleep(600)
"""
ENQUEUE = "import django, sys; django.setup(); import notes; notes.note.enqueue(sys.argv[1])"


def test_a_worker_starts_again_when_code_changes(project: str, tmp_path: Path) -> None:
    """At once, although a task runs: it runs again, with the new code."""
    code, changed, out = tmp_path / "notes.py", tmp_path / "changed", tmp_path / "out"
    code.write_text(NOTE.replace("VERSION", "one"))
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (root / "src", root, tmp_path)))
    env = os.environ | {"TEST_NEXO_URL": project, "PYTHONPATH": path}

    def noted(line: str) -> bool:
        return out.exists() and line in out.read_text().splitlines()

    def noted_by_new_code() -> bool:
        os.utime(code)  # a change counts once the reloader has seen the file before it
        return noted("two")

    command = [sys.executable, manage.__file__, "nexo_worker", "--reload", "--queue=default"]
    with subprocess.Popen(command, env=env) as worker:
        try:
            subprocess.run([sys.executable, "-c", ENQUEUE, out], check=True, env=env)
            wait_until(lambda: noted("one"), 60)
            changed.write_text(NOTE.replace("VERSION", "two"))
            changed.replace(code)
            wait_until(noted_by_new_code, 60)
        finally:
            worker.terminate()
