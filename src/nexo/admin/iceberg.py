"""A read-only Iceberg REST catalog: one URL with which any engine attaches the lake (SPEC I12).

``http://server:8080/iceberg`` answers what readers ask of a catalog: its configuration, namespaces,
tables and their metadata. The data files are read by the engine itself, from the folder or object
store where they are. A user sees the tables of the streams that they may read. Everything that
would change the lake is refused: the pipeline and its tools do that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.util import find_spec
from typing import Any, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from nexo.admin.context import ApiContext
from nexo.admin.http.replies import View, as_json, status_of
from nexo.config import Settings
from nexo.errors import Forbidden, NexoError, NotFound, Unavailable
from nexo.lake.catalog import Lake
from nexo.lake.settings import NAMESPACE, LakeSettings
from nexo.lake.tables import STREAM
from nexo.model import Broker

PREFIX = "/iceberg/v1"
_ENDPOINTS = [
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
]
_TYPES = {
    400: "BadRequestException",
    401: "NotAuthorizedException", 403: "ForbiddenException", 404: "NoSuchTableException",
    406: "UnsupportedOperationException", 503: "ServiceUnavailableException",
}  # fmt: skip

FindContext: TypeAlias = Callable[[Request], Awaitable[ApiContext]]


class IcebergCatalog:
    """The catalog's routes; ``find_context`` says who asks."""

    def __init__(self, settings: Settings, find_context: FindContext) -> None:
        self._where = LakeSettings(settings.lake_folder, settings.lake_catalog)
        self._find_context = find_context
        self._opened: Lake | None = None

    def routes(self) -> list[BaseRoute]:
        """Under `PREFIX`; what is not there, or would change something, is refused."""
        space = f"{PREFIX}/namespaces/{{namespace}}"
        return [
            Route(f"{PREFIX}/config", self._answered(self._config)),
            Route(f"{PREFIX}/namespaces", self._answered(self._namespaces)),
            Route(space, self._answered(self._namespace)),
            Route(f"{space}/tables", self._answered(self._tables)),
            Route(f"{space}/tables/{{table}}", self._answered(self._table)),
            Route(f"{PREFIX}/{{path:path}}", _read_only, methods=["GET", "POST", "PUT", "DELETE"]),
        ]

    def _answered(self, look: Callable[[Request, ApiContext], Awaitable[Any]]) -> View:
        @wraps(look)
        async def answer(request: Request) -> Response:
            try:
                return as_json(await look(request, await self._find_context(request)))
            except NexoError as error:
                return _refusal(status_of(error), error.message)

        return answer

    async def _config(self, request: Request, context: ApiContext) -> Any:
        return {"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS}

    async def _namespaces(self, request: Request, context: ApiContext) -> Any:
        return {"namespaces": [] if request.query_params.get("parent") else [[NAMESPACE]]}

    async def _namespace(self, request: Request, context: ApiContext) -> Any:
        _check_namespace(request)
        return {"namespace": [NAMESPACE], "properties": {}}

    async def _tables(self, request: Request, context: ApiContext) -> Any:
        _check_namespace(request)
        owners, visible = (
            await asyncio.to_thread(self._owners),
            await context.visible(Broker.STREAM),
        )
        seen = [name for name, of in owners.items() if visible is None or of in visible]
        return {"identifiers": [{"namespace": [NAMESPACE], "name": name} for name in seen]}

    async def _table(self, request: Request, context: ApiContext) -> Any:
        _check_namespace(request)
        name = request.path_params["table"]
        found = await asyncio.to_thread(self._load, name)
        if found is None:
            raise NotFound(f"there is no table {name!r} in the lake")
        stream, location, metadata = found
        visible = await context.visible(Broker.STREAM)
        if visible is not None and stream not in visible:
            raise Forbidden(f"table {name!r} takes permission to read stream {stream!r}")
        return {"metadata-location": location, "metadata": metadata, "config": {}}

    # -- in a thread -------------------------------------------------------------------

    def _lake(self) -> Lake:
        if find_spec("pyiceberg") is None:
            raise Unavailable("the lake's packages are not installed: nexo-broker[spark]")
        if self._opened is None:
            self._opened = Lake(self._where)
        return self._opened

    def _owners(self) -> dict[str, str]:
        """Every table and the stream it is of."""
        return {table.name()[-1]: table.properties[STREAM] for table in self._lake().tables()}

    def _load(self, name: str) -> tuple[str, str, msgspec.Raw] | None:
        table = self._lake().at(name)
        if table is None or STREAM not in table.properties:
            return None
        metadata = table.metadata.model_dump_json(exclude_none=True).encode()
        return table.properties[STREAM], table.metadata_location, msgspec.Raw(metadata)


def _check_namespace(request: Request) -> None:
    if request.path_params["namespace"] != NAMESPACE:
        raise NotFound(f"the lake's namespace is {NAMESPACE!r}")


async def _read_only(request: Request) -> Response:
    return _refusal(406, "this catalog can only be read: the pipeline writes the lake")


def _refusal(status: int, message: str) -> Response:
    kind = _TYPES.get(status, "ServerErrorException")
    return as_json({"error": {"message": message, "type": kind, "code": status}}, status)
