"""Celery on Nexo, with real workers (SPEC M1): tested with Celery 5.6."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.contrib.testing.worker import start_worker
from celery.exceptions import ChordError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult
from celery.signals import before_task_publish
from kombu import Connection

import nexo
from nexo import testing
from nexo.errors import ClientClosed
from nexo.integrations.celery.chords import insist
from tests.frameworks.celery_app import close_app, make_app
from tests.integration.certificates import make
from tests.timing import wait_until

REPO = Path(__file__).parents[2]
NAME = "tests.frameworks.celery_app"


@pytest.fixture(scope="module")
def app() -> Iterator[Celery]:
    """An app with a worker of two threads, in this process."""
    with testing.server() as url:
        app = make_app(url, worker_send_task_events=True, task_send_sent_event=True)
        options = {"perform_ping_check": False, "pool": "threads", "concurrency": 2}
        with start_worker(app, **options):
            yield app
        close_app(app)


def send(app: Celery, task: str, *args: Any, **options: Any) -> AsyncResult:
    return app.tasks[f"{NAME}.{task}"].apply_async(args, **options)


def sign(app: Celery, task: str, *args: Any) -> Any:
    return app.tasks[f"{NAME}.{task}"].s(*args)


def test_a_task_returns_its_result(app: Celery) -> None:
    assert send(app, "add", 2, 3).get(timeout=20) == 5


def test_a_closed_client_is_not_waited_for() -> None:
    client, asked = nexo.Client("nexo://127.0.0.1:1"), []

    def ask() -> Any:
        asked.append(client)
        assert len(asked) == 1, "it was asked again"
        return client.store.get("k")

    client.close()
    with pytest.raises(ClientClosed):
        insist(ask)


def test_a_failed_task_raises_its_error(app: Celery) -> None:
    with pytest.raises(ValueError, match="no luck"):
        send(app, "boom").get(timeout=20)


def test_a_task_that_retries_keeps_its_id(app: Celery) -> None:
    result = send(app, "flaky", 2)
    assert result.get(timeout=20) == 2
    assert result.state == "SUCCESS"


def test_a_countdown_is_held_by_the_broker(app: Celery) -> None:
    with nexo.connect(app.conf.broker_url) as client:
        result = send(app, "add", 1, 1, countdown=3.0)
        (job,) = client.queue("celery").scheduled.list()
        assert (job.headers["task"], job.headers["id"]) == (f"{NAME}.add", result.id)
        assert (job.headers["argsrepr"], job.headers["kwargsrepr"]) == ("(1, 1)", "{}")
        assert client.queue("celery").info().working == 0
        assert result.get(timeout=20) == 2


def test_groups_chains_and_chords(app: Celery) -> None:
    assert group(sign(app, "add", n, n) for n in range(5))().get(timeout=20) == [0, 2, 4, 6, 8]
    assert chain(sign(app, "add", 1, 2), sign(app, "add", 10))().get(timeout=20) == 13
    header = [sign(app, "add", n, 1) for n in range(20)]
    assert chord(header)(sign(app, "total")).get(timeout=20) == 210


def test_a_chord_whose_part_fails_fails(app: Celery) -> None:
    result = chord([sign(app, "add", 1, 1), sign(app, "boom")])(sign(app, "total"))
    with pytest.raises(ValueError, match=r"^no luck$"):
        result.get(timeout=20)
    wait_until(lambda: isinstance(result.result, ChordError), 60)


def test_a_chord_waits_for_the_parts_that_its_parts_add(app: Celery) -> None:
    header = [sign(app, "add_more", 5), sign(app, "add", 1, 1)]
    assert sorted(chord(header)(sign(app, "echo")).get(timeout=20)) == [2, 5, 10]


def test_the_header_of_a_chord_may_be_a_generator(app: Celery) -> None:
    """Its tasks are made while they are sent, so that many need no room."""
    published: list[str] = []
    before: list[int] = []

    def note(sender: str, **_: Any) -> None:
        published.append(sender)

    def tasks() -> Iterator[Any]:
        for n in range(4):
            before.append(len(published))
            yield sign(app, "add", n, n)

    before_task_publish.connect(note)
    try:
        assert chord(tasks(), app=app)(sign(app, "echo")).get(timeout=20) == [0, 2, 4, 6]
    finally:
        before_task_publish.disconnect(note)
    assert before[-1] > 0


def test_a_chord_does_not_need_the_results_of_its_parts(app: Celery) -> None:
    header = [sign(app, "add", n, n).set(ignore_result=True) for n in range(3)]
    assert chord(header)(sign(app, "echo")).get(timeout=20) == [0, 2, 4]


def test_a_task_that_asks_for_its_job_again_sees_that_it_was_delivered(app: Celery) -> None:
    assert send(app, "wait_for_redelivery").get(timeout=20) is True


def test_a_revoked_task_does_not_run(app: Celery, tmp_path: Path) -> None:
    app.control.revoke("unwanted")
    wait_until(lambda: "unwanted" in _asked(app, "revoked"), 60)
    result = send(app, "mark", str(tmp_path), "never", task_id="unwanted")
    wait_until(lambda: result.state == "REVOKED", 60)
    assert not (tmp_path / "never").exists()


def _asked(app: Celery, what: str) -> Any:
    replies = getattr(app.control.inspect(timeout=0.5), what)() or {}
    return next(iter(replies.values()), [])


def test_workers_answer_remote_control(app: Celery) -> None:
    wait_until(lambda: _asked(app, "ping") == {"ok": "pong"}, 60)
    wait_until(lambda: f"{NAME}.add" in _asked(app, "registered"), 60)
    wait_until(lambda: [each["name"] for each in _asked(app, "active_queues")] == ["celery"], 60)
    app.control.rate_limit(f"{NAME}.boom", "100/m")


def test_events_reach_whoever_watches(app: Celery) -> None:
    """Celery drops an event that comes while it sends others: one whole story is enough."""
    whole = {"task-sent", "task-received", "task-succeeded"}
    stories: dict[str, set[str]] = {}

    def note(event: dict[str, Any]) -> None:
        stories.setdefault(event.get("uuid", ""), set()).add(event["type"])

    with app.connection_for_read() as first:
        receiver = app.events.Receiver(first, handlers={"*": note})
        with receiver.consumer_context(wakeup=False) as (connection, _, _):
            send(app, "add", 4, 4).get(timeout=20)
            for _ in range(60):
                if any(story >= whole for story in stories.values()):
                    break
                try:
                    connection.drain_events(timeout=1)
                except TimeoutError:  # a worker without heartbeat sends when it wakes up next
                    send(app, "add", 0, 0).get(timeout=20)
    assert any(story >= whole for story in stories.values()), stories


def test_a_refused_task_is_a_dead_letter(app: Celery) -> None:
    with nexo.connect(app.conf.broker_url) as client:
        queue = client.queue("refused")
        app.control.add_consumer("refused", reply=True)
        send(app, "refuse", queue="refused")
        wait_until(lambda: queue.exists() and queue.info().dead == 1)
        (letter,) = queue.dlq.peek()
        assert letter.headers["task"] == f"{NAME}.refuse"
        assert letter.value.startswith("[[], {}")


def test_waiting_for_a_result_ends_in_time(app: Celery) -> None:
    with pytest.raises(CeleryTimeoutError):
        AsyncResult("no-such-task", app=app).get(timeout=0.2)


def test_results_expire_and_can_be_forgotten(app: Celery) -> None:
    result = send(app, "add", 1, 1)
    result.get(timeout=20)
    with nexo.connect(app.conf.broker_url) as client:
        key = f"celery-task-meta-{result.id}"
        left_s = client.store.ttl(key)
        assert left_s is not None
        assert 86_000 < left_s <= 86_400
        result.forget()
        assert not client.store.exists(key)


def test_an_eta_beyond_the_lease_runs_once_and_not_before(app: Celery, tmp_path: Path) -> None:
    """The lease is 5 s in these tests; a worker's timer would hold the job over many of them."""
    began_s = time.monotonic()
    result = send(app, "mark", str(tmp_path), "later", countdown=6.0)
    result.get(timeout=30)
    assert time.monotonic() - began_s > 5.9
    assert _lines(tmp_path) == {"begun": 1, "done": 1}


def test_a_solo_worker_over_tls(tmp_path: Path) -> None:
    certificates = make(tmp_path)
    cert, key = certificates.server, certificates.server_key
    with testing.process(tmp_path / "nexo", dashboard=False, tls_cert=cert, tls_key=key) as served:
        app = make_app(served.url)
        app.conf.broker_transport_options = {"ca_file": str(certificates.ca)}
        app.conf.result_backend_transport_options = {"ca_file": str(certificates.ca)}
        assert served.url.startswith("nexos://")
        try:
            with start_worker(app, perform_ping_check=False, pool="solo"):
                assert send(app, "add", 2, 3).get(timeout=60) == 5
        finally:
            close_app(app)


# -- kombu alone


def test_a_channel_is_of_the_server_that_answers(app: Celery) -> None:
    urls = ["nexo://127.0.0.1:1", app.conf.broker_url]
    with Connection(urls) as connection, connection.channel() as channel:
        assert channel.connection.nexo.ping() is not None


def test_what_a_channel_gives_back_it_gets_at_once(app: Celery) -> None:
    with Connection(app.conf.broker_url) as connection:
        queue = connection.SimpleQueue("given-back")
        queue.put("again")
        for _ in range(20):
            message = queue.get_nowait()
            message.requeue()
            assert queue.qsize() == 1
        message = queue.get_nowait()
        assert message.delivery_info["redelivered"] is True
        message.ack()
        with pytest.raises(queue.Empty):
            queue.get_nowait()
        queue.close()


def test_a_buffer_has_priorities(app: Celery) -> None:
    with Connection(app.conf.broker_url) as connection:
        buffer = connection.SimpleBuffer("buffer")
        buffer.put("first", priority=2)
        buffer.put("second", priority=6)
        buffer.put("third", priority=2)
        wait_until(lambda: buffer.qsize() == 3)
        assert [buffer.get(timeout=20).payload for _ in range(3)] == ["second", "first", "third"]
        buffer.close()


# -- processes that are killed


@contextmanager
def worker(url: str, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A prefork worker of its own process group."""
    command = [sys.executable, "-m", "celery", "-A", NAME, "worker", "-l", "INFO", *options]
    path = os.pathsep.join([str(REPO), str(REPO / "src"), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"CELERY_TEST_URL": url, "PYTHONPATH": path}
    env.pop("DJANGO_SETTINGS_MODULE", None)  # set by the other frameworks' tests
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=env, cwd=REPO, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_groups_within_a_chord_hold_up_no_worker(served: testing.Process, tmp_path: Path) -> None:
    """One thread, more parts than the header has members: to wait for one is to wait for ever."""
    app = make_app(served.url)
    try:
        ending = chain(sign(app, "echo", 4), group(sign(app, "add", n) for n in range(6)))
        header = [sign(app, "add", 3, 3), ending, sign(app, "add", 9, 9)]
        with worker(served.url, tmp_path / "worker.log", "-c", "1", "--pool", "threads"):
            results = [chord(header)(sign(app, "echo")) for _ in range(20)]
            assert [each.get(timeout=60) for each in results] == [[6, [4, 5, 6, 7, 8, 9], 18]] * 20
    finally:
        close_app(app)


def test_a_chord_survives_a_crash_of_the_server(served: testing.Process, tmp_path: Path) -> None:
    """The store is empty after it, and with it the results of parts and their counter."""
    app, gate = make_app(served.url), tmp_path / "gate"
    try:
        with worker(served.url, tmp_path / "worker.log", "-c", "3", "--pool", "threads"):
            parts = [
                sign(app, "add", 1, 1),
                sign(app, "hold", str(gate), 3),
                sign(app, "add", 2, 2),
            ]
            result = chord(parts)(sign(app, "total"))
            with nexo.connect(served.url) as client:
                wait_until(lambda: len(client.pubsub.retained("celery/chord/+/part/+")) == 2)
            served.kill()
            served.start()
            gate.touch()
            assert result.get(timeout=60) == 9
            with nexo.connect(served.url) as client:
                wait_until(lambda: client.pubsub.retained("celery/chord/#") == [])
    finally:
        close_app(app)


def _lines(folder: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in folder.iterdir():
        found.update(line.split()[0] for line in path.read_text().splitlines())
    return found


def _finished(url: str) -> int:
    """Tasks whose acknowledgement the server has."""
    with nexo.connect(url) as client:
        return client.queue("celery").info().finished_total


def test_prefork_workers_and_the_broker_are_killed(served: testing.Process, tmp_path: Path) -> None:
    """Nothing is lost, and what was done before the kills is not done again."""
    marks, log = tmp_path / "marks", tmp_path / "worker.log"
    marks.mkdir()
    app = make_app(served.url)
    try:
        with worker(served.url, log, "-c", "2", "--pool", "prefork") as first:
            before = [send(app, "mark", str(marks), f"before{n}") for n in range(3)]
            for result in before:
                assert result.get(timeout=60) != first.pid
            wait_until(lambda: _finished(served.url) == 3)
            long = send(app, "mark", str(marks), "long", 1.5)
            wait_until(lambda: _lines(marks)["begun"] == 4, 60)
            os.killpg(first.pid, signal.SIGKILL)
        with worker(served.url, log, "-c", "2", "--pool", "prefork") as second:
            long.get(timeout=60)
            wait_until(lambda: _finished(served.url) == 4)
            served.kill()
            served.start()
            for n in range(3):
                send(app, "mark", str(marks), f"after{n}")
            wait_until(lambda: _lines(marks)["done"] == 7, 60)
            second.terminate()
            assert second.wait(30) == 0
        assert _lines(marks) == {"begun": 8, "done": 7}, log.read_text()[-9_000:]
        with nexo.connect(served.url) as client:
            info = client.queue("celery").info()
            assert (info.waiting, info.working, info.scheduled, info.dead) == (0, 0, 0, 0)
    finally:
        close_app(app)
