"""``manage.py nexo_worker``: runs the tasks of a Nexo backend until it is asked to stop."""

from __future__ import annotations

import atexit
import sys
import threading
from argparse import ArgumentParser
from contextlib import suppress
from functools import partial
from typing import Any

import django
from django.core.management.base import BaseCommand, CommandError
from django.utils import autoreload

from nexo.client.worker_processes import ProcessStopSignal, WorkerProcesses, stop_with_parent
from nexo.integrations.django.api import task_backends
from nexo.integrations.django.clients import close_all
from nexo.integrations.django.tasks import DjangoTaskBackend
from nexo.integrations.django.worker import TaskWorker

_OPTIONS = ("backend", "queue", "threads", "stop_timeout", "no_relay")
"""The options that each process gets."""


class Command(BaseCommand):
    """Works until SIGTERM or Ctrl-C; then finishes what runs."""

    help = "Run tasks from Nexo's queues, and relay the outbox."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--backend", default="default", help="which of TASKS to work for")
        add("--queue", action="append", default=[], help="a queue; all of the backend's if none")
        add("--threads", type=int, default=4, help="tasks of one queue at once, per process")
        add("--processes", type=int, default=1, help="how many processes")
        add("--stop-timeout", type=float, default=30.0, help="seconds a running task has to end")
        add("--no-relay", action="store_true", help="leave the outbox to other workers")
        add("--reload", action="store_true", help="start again when code changes; one process")

    def handle(self, *_args: Any, **options: Any) -> None:
        backend = task_backends[options["backend"]]
        if not isinstance(backend, DjangoTaskBackend):
            raise CommandError(f"TASKS[{options['backend']!r}] is not a Nexo backend")
        if options["threads"] < 1 or options["processes"] < 1:
            raise CommandError("--threads and --processes are at least 1")
        if options["reload"]:
            autoreload.run_with_reloader(self._work, options, None)
        elif options["processes"] > 1:
            work = partial(_run_alone, {name: options[name] for name in _OPTIONS})
            WorkerProcesses(work, options["processes"], options["stop_timeout"]).run()
        else:
            self.run_alone(options)

    def run_alone(self, options: dict[str, Any]) -> None:
        """Work in this process until a signal comes."""
        with ProcessStopSignal() as asked:
            self._work(options, asked)

    def _work(self, options: dict[str, Any], asked: ProcessStopSignal | None) -> None:
        worker = TaskWorker(
            options["backend"],
            options["queue"],
            options["threads"],
            relays=not options["no_relay"],
        )
        worker.start()
        if asked is None:  # a reload ends the process: a task that runs must not hold it up
            atexit.register(worker.stop, 0)
        self.stdout.write(f"{worker.id} works on {', '.join(worker.queues)}")
        self.stdout.flush()
        over = asked or threading.Event()
        worker.when_ended(over.set)
        with suppress(KeyboardInterrupt):
            over.wait()
        worker.stop(options["stop_timeout"])
        failure = worker.failure()
        close_all()
        if failure is not None:
            raise CommandError(f"a queue is no longer served: {failure}")


def _run_alone(options: dict[str, Any]) -> None:
    """One of several processes, which stops if the first one is lost."""
    django.setup()
    stop_with_parent()
    try:
        Command().run_alone(options)
    except CommandError as error:
        sys.exit(str(error))
