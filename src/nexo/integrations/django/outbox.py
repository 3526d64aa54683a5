"""The outbox: a task enters its queue if, and only if, its transaction is committed.

`add` writes a row in the transaction. After the commit the same process pushes it; should it die
first, or the server be away, the relay of a worker does. A row is pushed and deleted under a
lock, and a worker deletes the row of a task before it runs it, which waits for that lock. So
a relay that dies between its push and its commit makes no second job: either the row's next push
meets the first job still waiting or running and adds nothing (its ``dedup_key`` is the task's
id), or the worker has deleted the row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from django.db import connections, transaction

from nexo.client import telemetry
from nexo.errors import InvalidInput, NexoError
from nexo.integrations.django.api import task_backends
from nexo.integrations.django.records import TaskCall

log = logging.getLogger("nexo.django")

_BATCH = 100


class Backend(Protocol):
    """The outbox's view of a task backend."""

    alias: str
    database: str

    def push(
        self, message: TaskCall, headers: Mapping[str, Any], *, fail_fast: bool = False
    ) -> None:
        """Put a task into its queue; repeating it does no harm while the task waits or runs."""


def is_wanted(mode: str, database: str) -> bool:
    """Whether a task that is enqueued now has to wait for a transaction."""
    return mode == "always" or (mode == "transaction" and connections[database].in_atomic_block)


def add(backend: Backend, message: TaskCall, committed: Callable[[], None]) -> None:
    """Write a task down with the current transaction; ``committed`` is called after the commit."""
    rows(backend.database).create(
        task_id=message.id,
        backend=backend.alias,
        message=asdict(message),
        headers=telemetry.carried(),
    )
    alias, task_id, database = backend.alias, message.id, backend.database
    transaction.on_commit(lambda: _relay_now(alias, task_id), using=database, robust=True)
    transaction.on_commit(committed, using=database, robust=True)


def _relay_now(alias: str, task_id: str) -> None:
    """Push one task; if that fails, the relay of a worker will."""
    try:
        relay(task_backends[alias], only=task_id)
    except NexoError as error:
        log.warning("task %s stays in the outbox: %s", task_id, error)


def find(database: str, task_id: str) -> TaskCall | None:
    """A task that is still in the outbox."""
    row = rows(database).filter(task_id=task_id).first()
    return None if row is None else TaskCall(**row.message)


def forget(database: str, task_id: str) -> None:
    """Delete a task that was found in its queue; waits for a relay that has locked it."""
    rows(database).filter(task_id=task_id).delete()


def relay(backend: Backend, *, only: str | None = None) -> int:
    """Move committed tasks into their queues; returns how many.

    Raises what affects all of them, such as `ConnectionLost`; a task that the server rejects
    stays, and is tried again after the others.
    """
    with transaction.atomic(using=backend.database):
        found = _locked(backend, only)
        pushed = [row.pk for row in found if _push(backend, row)]
        rows(backend.database).filter(pk__in=pushed).delete()
    return len(pushed)


def _push(backend: Backend, row: Any) -> bool:
    try:
        backend.push(TaskCall(**row.message), row.headers, fail_fast=True)
    except InvalidInput as error:
        log.error("task %s cannot be pushed: %s", row.task_id, error)
        rows(backend.database).filter(pk=row.pk).update(failures=row.failures + 1)
        return False
    return True


def _locked(backend: Backend, only: str | None) -> list[Any]:
    """Rows that no one else can push or delete until the transaction ends."""
    features, query = connections[backend.database].features, rows(backend.database)
    if features.has_select_for_update:
        query = query.select_for_update(skip_locked=features.has_select_for_update_skip_locked)
    else:
        query.filter(pk=0).update(failures=0)  # takes SQLite's lock, which is on all rows
    query = query.filter(backend=backend.alias)
    if only is not None:
        query = query.filter(task_id=only)
    return list(query.order_by("failures", "id")[:_BATCH])


def rows(database: str) -> Any:
    """The table, in one of the project's databases."""
    from nexo.integrations.django.models import OutboxTask  # noqa: PLC0415 - if it is installed

    return OutboxTask._default_manager.using(database)
