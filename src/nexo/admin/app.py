"""Puts the dashboard, the API and the metrics together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from nexo import limits
from nexo.admin import prometheus as metrics
from nexo.admin.api import TABLE
from nexo.admin.context import ApiContext, ServerAccess
from nexo.admin.http import asyncapi, openapi
from nexo.admin.http.guard import HttpGuard
from nexo.admin.http.pages import pages
from nexo.admin.http.replies import (
    HealthReply,
    Ready,
    View,
    answer,
    as_json,
    body_of,
    failure,
    problem,
)
from nexo.admin.http.routes import PREFIX, Endpoint
from nexo.admin.http.sessions import Sessions
from nexo.admin.http.sockets import Conversation
from nexo.admin.iceberg import IcebergCatalog
from nexo.admin.watching.sampler import Sampler
from nexo.admin.watching.webhook import Webhook
from nexo.errors import NexoError
from nexo.model import Broker

_STATIC = Path(__file__).parent / "static"


class AdminApp:
    """The application of one server; ``async with`` watches the brokers meanwhile."""

    def __init__(self, place: ServerAccess) -> None:
        client = place.client(place.credentials)
        self._sampler = Sampler(client, place.settings, place.run_folder)
        self._metrics = metrics.Metrics(self._sampler)
        self.context = ApiContext(
            place, client, self._sampler, asyncio.Event(), set(), who=place.credentials
        )
        self._sessions = Sessions(self.context)
        routes = self._routes()
        self.app = Starlette(
            routes=routes,
            middleware=[
                Middleware(
                    HttpGuard,
                    metrics=self._metrics,
                    host=place.settings.host,
                    methods=_methods(routes),
                    origins=place.settings.origins,
                )
            ],
            exception_handlers={
                HTTPException: _http_error,
                NexoError: _refused,
                Exception: _bug,
            },
        )
        self.app.state.max_body_bytes = place.settings.max_payload_bytes
        self._work = [self._sampler.run]
        if hook := place.settings.alert_webhook:
            self._work.append(Webhook(hook, place.url, lambda: self._sampler.alerts).run)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> AdminApp:
        self._tasks = [asyncio.create_task(work()) for work in self._work]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*self.context.ending, return_exceptions=True)
        await self._sessions.close()
        await self.context.client.close()

    def stop(self) -> None:
        """End replies that would never end by themselves."""
        self.context.stopping.set()

    async def ready(self) -> None:
        """Wait until every broker has answered."""
        while not self._sampler.all_up:
            await self._sampler.next_sample()

    def _routes(self) -> list[BaseRoute]:
        return [
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._read_metrics),
            Route(f"{PREFIX}/openapi.json", _constant(openapi.document(TABLE))),
            Route(f"{PREFIX}/asyncapi.json", _constant(asyncapi.document())),
            WebSocketRoute(asyncapi.SOCKET, self._converse),
            Route(f"{PREFIX}/session", self._session),
            Route(f"{PREFIX}/login", self._log_in, methods=["POST"]),
            Route(f"{PREFIX}/logout", self._sessions.log_out, methods=["POST"]),
            *(Route(row.path, self._endpoint(row), methods=[row.method]) for row in TABLE),
            Route(f"{PREFIX}/{{path:path}}", _no_such_endpoint, methods=["GET", "POST"]),
            *IcebergCatalog(self.context.place.settings, self._sessions.context).routes(),
            Route("/{path:path}", pages(_STATIC)),
        ]

    def _endpoint(self, row: Endpoint) -> View:
        async def run(request: Request) -> Response:
            context = await self._sessions.context(request, live=row.live)
            return await answer(row, context, request)

        return run

    async def _converse(self, socket: WebSocket) -> None:
        """A web socket, with a connection of its own to the brokers."""
        try:
            context = await self._sessions.context(socket, live=True)
            async with context.own_client() as client:
                await socket.accept()
                await Conversation(socket, context, client).run()
        except NexoError as error:
            await socket.send_denial_response(failure(error))

    async def _health(self, request: Request) -> Response:
        """This process lives."""
        return as_json(HealthReply())

    async def _ready(self, request: Request) -> Response:
        """Every broker answers."""
        brokers = {watch.broker.label: watch.up for watch in self._sampler.brokers.values()}
        ready = self._sampler.all_up
        return as_json(Ready(ready, brokers), 200 if ready else 503)

    async def _read_metrics(self, request: Request) -> Response:
        context = await self._sessions.context(request)
        await context.check_watchable(*Broker)
        return Response(self._metrics.text(), media_type=metrics.CONTENT_TYPE)

    async def _session(self, request: Request) -> Response:
        return as_json(self._sessions.view(request))

    async def _log_in(self, request: Request) -> Response:
        return await self._sessions.log_in(request, await body_of(request, limits.HTTP_LOGIN_BYTES))


def _methods(routes: Iterable[BaseRoute]) -> dict[str, list[str]]:
    """The methods of each path without parameters."""
    found: dict[str, set[str]] = {}
    for route in routes:
        if isinstance(route, Route) and "{" not in route.path:
            found.setdefault(route.path, set()).update(route.methods or ())
    return {path: sorted(methods) for path, methods in found.items()}


def _constant(reply: object) -> View:
    async def read(request: Request) -> Response:
        return as_json(reply)

    return read


async def _no_such_endpoint(request: Request) -> Response:
    return problem(404, "NOT_FOUND", f"there is no {request.method} {request.url.path}")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, NexoError)
    return failure(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "NOT_FOUND", 405: "METHOD"}.get(error.status_code, "INVALID")
    reply = problem(error.status_code, code, error.detail)
    reply.headers.update(error.headers or {})
    return reply


async def _bug(request: Request, error: Exception) -> Response:
    return problem(500, "ERROR", "internal error; the server's log has the details")
