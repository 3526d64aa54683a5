"""Tasks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from django_tasks import TaskContext, task

ran: list[Any] = []
"""What the tasks of this process were given, in the order they ran."""


@task
def add(a: int, b: int) -> int:
    ran.append((a, b))
    return a + b


@task
async def aadd(a: int, b: int) -> int:
    return a + b


@task(priority=7, queue_name="mails")
def mail(to: str) -> None:
    ran.append(to)


@task
def fail(text: str) -> None:
    ran.append(text)
    raise ValueError(text)


@task(takes_context=True)
def attempts(context: TaskContext, wanted: int) -> int:
    if context.attempt < wanted:
        raise ValueError("again")
    return int(context.attempt)


@task
def write(path: str, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(text + "\n")


@task
def slow(path: str) -> str:
    Path(path).write_text("begun")
    time.sleep(1)
    Path(path).write_text("done")
    return "done"


@task
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
