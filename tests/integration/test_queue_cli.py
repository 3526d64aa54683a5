"""``nexo queue``, ``nexo dlq`` and ``nexo worker`` against a real server (SPEC K5)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import nexo as package
from nexo.cli import main


def nexo(url: str, *args: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(main, [*args, "--url", url], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def parsed(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.output.splitlines()]


def test_a_queue_from_birth_to_death(nexo_url: str) -> None:
    created = nexo(nexo_url, "queue", "create", "mails", "--max-retries", "2", "--json")
    assert parsed(created)[0]["options"]["max_retries"] == 2
    ids = nexo(nexo_url, "queue", "push", "mails", "one", "two", "--priority", "3").output.split()
    assert [len(job_id) for job_id in ids] == [32, 32]
    assert "one" in nexo(nexo_url, "queue", "peek", "mails").output
    assert nexo(nexo_url, "queue", "pop", "mails").output == "one\n"
    popped = parsed(nexo(nexo_url, "queue", "pop", "mails", "--no-ack", "--json"))
    assert popped == [{"id": ids[1], "value": "two", "attempt": 1}]
    assert parsed(nexo(nexo_url, "queue", "info", "mails", "--json"))[0]["waiting"] == 1
    assert "1 jobs removed" in nexo(nexo_url, "queue", "purge", "mails", "--yes").output
    empty = nexo(nexo_url, "queue", "pop", "mails")
    assert (empty.exit_code, empty.stdout) == (1, "")
    assert empty.stderr == "error[NOT_FOUND]: no job of queue 'mails' is ready\n"
    assert "mails" in nexo(nexo_url, "queue", "list").output
    assert parsed(nexo(nexo_url, "queue", "list", "m", "--names", "--json")) == [{"name": "mails"}]
    assert parsed(nexo(nexo_url, "queue", "list", "x", "--json")) == []
    assert nexo(nexo_url, "queue", "delete", "mails", "--yes").output == "mails deleted\n"


def test_pause_resume_update_and_schedule(nexo_url: str) -> None:
    nexo(nexo_url, "queue", "create", "q")
    nexo(nexo_url, "queue", "push", "q", '{"a": 1}', "--as", "json", "--delay", "1h")
    assert "paused" in nexo(nexo_url, "queue", "pause", "q").output
    assert "running" in nexo(nexo_url, "queue", "resume", "q").output
    (job,) = parsed(nexo(nexo_url, "queue", "peek", "q", "--scheduled", "--json"))
    assert job["value"] == {"a": 1}
    assert nexo(nexo_url, "queue", "cancel", "q", job["id"]).output == "removed\n"
    nexo(nexo_url, "queue", "update", "q", "--backoff", "fixed", "--backoff-delay", "3s")
    assert "backoff delay\t3s" in nexo(nexo_url, "queue", "info", "q").output
    nexo(nexo_url, "queue", "cron", "set", "q", "nightly", "0 3 * * *", "report")
    assert "nightly" in nexo(nexo_url, "queue", "cron", "list", "q").output
    assert "nightly deleted" in nexo(nexo_url, "queue", "cron", "delete", "q", "nightly").output


def test_dead_letters_are_listed_replayed_and_purged(nexo_url: str, client: package.Client) -> None:
    queue = client.queue("q").create(max_retries=0)
    queue.push_many(["a", "b", "c"])
    queue.pop(3).nack("broken")
    rows = parsed(nexo(nexo_url, "dlq", "list", "q", "--json"))
    assert [(row["value"], row["reason"]) for row in rows] == [
        ("c", "broken"), ("b", "broken"), ("a", "broken"),
    ]  # fmt: skip
    assert "1 jobs wait again" in nexo(nexo_url, "dlq", "replay", "q", rows[0]["id"]).output
    assert nexo(nexo_url, "dlq", "replay", "q").exit_code == 2
    assert nexo(nexo_url, "dlq", "delete", "q", rows[1]["id"]).output == "1 dead letters deleted\n"
    assert "1 dead letters deleted" in nexo(nexo_url, "dlq", "purge", "q", "--yes").output
    assert "no dead letters" in nexo(nexo_url, "dlq", "list", "q").output


def test_an_unknown_queue_is_one_line_and_exit_code_one(nexo_url: str) -> None:
    result = nexo(nexo_url, "queue", "push", "nowhere", "x")
    assert result.exit_code == 1
    assert result.output == "error[NOT_FOUND]: queue 'nowhere' not found: create it first\n"


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_worker_runs_a_function_until_sigterm(
    kind: str, nexo_url: str, client: package.Client, tmp_path: Path
) -> None:
    queue = client.queue("sums").create(result_ttl=60)
    (tmp_path / "tasks.py").write_text(f"{kind} add(job):\n    return sum(job.value)\n")
    command = [sys.executable, "-m", "nexo", "worker", "tasks:add", "--queue", "sums"]
    environ = os.environ | {"NEXO_URL": nexo_url}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE) as worker:
        try:
            assert queue.result(queue.push([1, 2, 3]), wait=20) == 6
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(10) == 0
        finally:
            worker.kill()


@pytest.mark.parametrize("target", ["nothing", "no_such_module:f", "json:nope", "json:__name__"])
def test_a_worker_that_cannot_be_found_is_refused(nexo_url: str, target: str) -> None:
    assert nexo(nexo_url, "worker", target, "--queue", "q").exit_code == 2


def test_jobs_in_work_are_shown_with_their_holder(nexo_url: str) -> None:
    with package.connect(nexo_url, client="worker-7") as client:
        queue = client.queue("mails").create()
        queue.push_many(["one", "two"])
        (job,) = queue.pop(1, lease=60)
        (row,) = parsed(nexo(nexo_url, "queue", "peek", "mails", "--working", "--json"))
        assert (row["id"], row["value"], row["holder"]) == (job.id, "one", "worker-7")
        assert (0 < row["lease_left_ms"] <= 60_000, row["attempt"]) == (True, 1)
        job.ack()
    assert "in work" in nexo(nexo_url, "queue", "peek", "mails", "--working").output


def test_a_name_that_does_not_exist_brings_those_like_it(nexo_url: str) -> None:
    with package.connect(nexo_url) as client:
        client.queue("mails").create()
        client.stream("orders/eu").create()
    assert "did you mean 'mails'?" in nexo(nexo_url, "queue", "info", "mail").output
    assert "did you mean 'orders/eu'?" in nexo(nexo_url, "tail", "order/eu").output
    assert "did you mean" not in nexo(nexo_url, "queue", "info", "zzzz").output
