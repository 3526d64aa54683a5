"""The endpoints, one module per part of the server."""

from __future__ import annotations

from nexo.admin.api import (
    connections,
    events,
    groups,
    jobs,
    overview,
    pipeline,
    pubsub,
    queue,
    records,
    replicas,
    sql,
    store,
    stream,
    traces,
    users,
    work,
)
from nexo.admin.http.routes import Endpoint

_PARTS = (
    overview, store, pubsub, queue, jobs, stream, records, groups, pipeline, sql,
    replicas, traces, connections, users, work, events,
)  # fmt: skip

TABLE: list[Endpoint] = [row for part in _PARTS for row in part.routes.table]
"""Every endpoint."""
