"""The endpoints, one module per part of the server."""

from __future__ import annotations

from nexo.admin.api import connections, groups, overview, pipeline, pubsub, queue, store, stream
from nexo.admin.routes import Endpoint

_PARTS = (overview, store, pubsub, queue, stream, groups, pipeline, connections)

TABLE: list[Endpoint] = [row for part in _PARTS for row in part.routes.table]
"""Every endpoint."""
