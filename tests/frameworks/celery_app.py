"""The Celery app of the tests, for workers in this process and in others."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.exceptions import Reject
from kombu import pools

import nexo.integrations.celery  # noqa: F401 - as an installed package this is not needed

BACKEND = "nexo.integrations.celery.backend:CeleryResultBackend"


def make_app(url: str, **settings: Any) -> Celery:
    """An app whose broker and result backend is the server at ``url``."""
    app = Celery("tests.frameworks.celery_app", broker=url, backend=f"{BACKEND}+{url}", fixups=[])
    app.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": 5},
        worker_hijack_root_logger=False,
        task_store_eager_result=False,
        **settings,
    )
    app.task(add)
    app.task(total)
    app.task(echo)
    app.task(add_more, bind=True)
    app.task(mark)
    app.task(hold)
    app.task(boom)
    app.task(refuse, acks_late=True)
    app.task(wait_for_redelivery, bind=True, acks_late=True)
    app.task(flaky, bind=True, max_retries=3)
    return app


def close_app(app: Celery) -> None:
    """Close every connection; Celery leaves those of its pools to the end of the process."""
    pools.reset()
    app.pool.force_close_all()
    app.backend.nexo.close()
    app.close()


def add(a: int, b: int) -> int:
    return a + b


def total(numbers: list[int]) -> int:
    return sum(numbers)


def echo(value: Any) -> Any:
    return value


def add_more(self: Task, number: int) -> int:
    """Add a part to the chord that this task is a part of."""
    self.add_to_chord(self.app.tasks[f"{__name__}.add"].s(number, number))
    return number


def mark(folder: str, name: str, seconds: float = 0) -> int:
    """Leave a line when begun and one when done: who reads them sees what ran how often."""
    path = Path(folder) / name
    with path.open("a") as file:
        file.write(f"begun {os.getpid()}\n")
    time.sleep(seconds)
    with path.open("a") as file:
        file.write("done\n")
    return os.getpid()


def hold(path: str, result: int) -> int:
    """Run until a file is there."""
    while not Path(path).exists():
        time.sleep(0.01)
    return result


def boom() -> None:
    raise ValueError("no luck")


def wait_for_redelivery(self: Task) -> bool:
    """Ask for the job again until the broker says that it was delivered before."""
    if not self.request.delivery_info["redelivered"]:
        raise Reject("once more", requeue=True)
    return True


def refuse() -> None:
    raise Reject("not for me", requeue=False)


def flaky(self: Task, until: int) -> int:
    if self.request.retries < until:
        raise self.retry(countdown=0.05)
    return int(self.request.retries)


if "CELERY_TEST_URL" in os.environ:
    app = make_app(os.environ["CELERY_TEST_URL"], task_acks_late=True, worker_prefetch_multiplier=1)
