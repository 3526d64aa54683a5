"""The Celery app that `frameworks` measures, for the sender and the worker."""

from __future__ import annotations

import os

from celery import Celery

import nexo.integrations.celery  # noqa: F401 - as an installed package this is not needed


def make_app(url: str) -> Celery:
    """An app with acks late, which keeps the results of one of its tasks."""
    results = "rpc://" if url.startswith("amqp") else url
    if url.startswith("nexo"):
        results = f"nexo.integrations.celery.backend:CeleryResultBackend+{url}"
    app = Celery("benchmarks.celery_app", broker=url, backend=results)
    app.conf.update(
        task_acks_late=True,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True} if url.startswith("amqp") else {},
    )
    app.task(tick, ignore_result=True)
    app.task(double)
    return app


def tick(path: str) -> None:
    """Leave a byte."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, b".")
    finally:
        os.close(file)


def double(number: int) -> int:
    """A result."""
    return 2 * number


if "BENCH_CELERY_URL" in os.environ:
    app = make_app(os.environ["BENCH_CELERY_URL"])
