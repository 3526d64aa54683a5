"""The endpoints, one module per part of the server."""

from __future__ import annotations

from nexo.admin.api import overview
from nexo.admin.routes import Endpoint

TABLE: list[Endpoint] = [row for part in (overview,) for row in part.routes.table]
"""Every endpoint."""
