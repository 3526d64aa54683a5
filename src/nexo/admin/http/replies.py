"""HTTP's side of an endpoint: parameters in, JSON or server-sent events out, errors as JSON."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from nexo import limits
from nexo.admin.context import ApiContext
from nexo.admin.http.routes import Endpoint, LiveEvent
from nexo.errors import (
    Conflict,
    ConnectionLost,
    Forbidden,
    InvalidInput,
    LockedOut,
    NexoError,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    ProtocolError,
    RequestTimeout,
    Unauthenticated,
    Unavailable,
)
from nexo.options.refusals import in_words

log = logging.getLogger("nexo.admin")

View: TypeAlias = Callable[[Request], Awaitable[Response]]

TOKEN = "token"
"""The parameter that carries a token where a browser can send no header."""

STATUS: tuple[tuple[type[NexoError], int], ...] = (
    (PayloadTooLarge, 413),
    (InvalidInput, 400),
    (ProtocolError, 400),
    (NotFound, 404),
    (Conflict, 409),
    (LockedOut, 429),
    (Unauthenticated, 401),
    (Forbidden, 403),
    (RequestTimeout, 504),
    (OutcomeUnknown, 504),
    (Unavailable, 503),
    (ConnectionLost, 503),
)
_encode = msgspec.json.Encoder().encode


class Problem(msgspec.Struct, omit_defaults=True):
    """Why a request was refused."""

    code: str
    message: str
    field: str | None = None
    """The option or parameter at fault, where that is known."""


class HealthReply(msgspec.Struct):
    """The process of the dashboard lives."""

    status: Literal["ok"] = "ok"


class Ready(msgspec.Struct):
    """Whether every broker answers."""

    ready: bool
    brokers: dict[str, bool]


def problem(status: int, code: str, message: str, field: str | None = None) -> Response:
    """A refusal as JSON."""
    return as_json(Problem(code, message, field), status)


def failure(error: NexoError) -> Response:
    """The reply to a request that raised ``error``."""
    reply = problem(status_of(error), error.code, error.message, error.field)
    if isinstance(error, LockedOut):
        reply.headers["retry-after"] = str(limits.LOCKED_OUT_MS // 1_000)
    return reply


def status_of(error: NexoError) -> int:
    """HTTP's status for ``error``."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def as_json(value: object, status: int = 200) -> Response:
    """A JSON reply that must not be cached."""
    headers = {"cache-control": "no-store"}
    return Response(_encode(value), status, headers, media_type="application/json")


async def answer(endpoint: Endpoint, context: ApiContext, request: Request) -> Response:
    """Run an endpoint."""
    ask = await _asked(endpoint, request)
    if endpoint.live:
        return _Events(context, endpoint.run(context, ask))  # type: ignore[arg-type]
    work: Coroutine[Any, Any, Any] = endpoint.run(context, ask)  # type: ignore[assignment]
    return as_json(await (_while_there(request, work) if endpoint.waits else work))


async def _while_there(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of ``work``, which is cancelled if the caller leaves before."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            raise ConnectionLost("the caller has left")
        return working.result()
    finally:
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _asked(endpoint: Endpoint, request: Request) -> Any:
    try:
        if endpoint.method == "GET":
            given = _parameters(request.query_params)
            if endpoint.live:
                given.pop(TOKEN, None)  # `Sessions` has read it
                seen = request.headers.get("last-event-id")
                if seen and "offsets" in endpoint.takes.__struct_fields__:
                    given["offsets"] = seen
            return msgspec.convert(given, endpoint.takes, strict=False)
        return msgspec.json.decode(await body_of(request) or b"{}", type=endpoint.takes)
    except msgspec.ValidationError as error:
        raise InvalidInput(in_words(error, endpoint.takes)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the body is not JSON: {error}") from None


def _parameters(given: Mapping[str, str]) -> dict[str, str]:
    """An empty parameter is one left out, as HTML forms have it."""
    for name, text in given.items():
        if "\ufffd" in name + text:
            raise InvalidInput(f"parameter {name!r} is not UTF-8")
    return {name: text for name, text in given.items() if text}


async def body_of(request: Request, limit: int = 0) -> bytes:
    """The whole body; `PayloadTooLarge` past ``limit``, or the server's limit without one."""
    limit = limit or request.app.state.max_body_bytes
    body = bytearray()
    _check_size(int(request.headers.get("content-length", 0)), limit)
    try:
        async for chunk in request.stream():
            body += chunk
            _check_size(len(body), limit)
    except ClientDisconnect:
        raise ConnectionLost("the caller has left") from None
    return bytes(body)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise PayloadTooLarge(f"the body is larger than {limit} bytes")


def _event(row: Any) -> bytes:
    """One event; None is a sign of life."""
    if row is None:
        return b": still here\n\n"
    if isinstance(row, LiveEvent):
        return b"id: " + row.id.encode() + b"\ndata: " + _encode(row.data) + b"\n\n"
    return b"data: " + _encode(row) + b"\n\n"


class _Events(StreamingResponse):
    """Rows as server-sent events; an error is the last event, named ``problem``."""

    def __init__(self, context: ApiContext, rows: AsyncGenerator[Any]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(self._events(), 200, headers, "text/event-stream")
        self._context = context
        self._rows = rows
        self._coming: asyncio.Future[Any] | None = None

    async def stream_response(self, send: Send) -> None:
        """Send events until the server stops or the viewer leaves."""
        try:
            await super().stream_response(send)
        finally:
            # When a viewer leaves, this is cancelled, with everything that it awaits.
            self._context.finish(self._end())

    async def _events(self) -> AsyncIterator[bytes]:
        yield b": hello\n\n"
        stopping = asyncio.ensure_future(self._context.stopping.wait())
        try:
            while True:
                self._coming = asyncio.ensure_future(anext(self._rows))
                await asyncio.wait((self._coming, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not self._coming.done():
                    return
                yield _event(self._coming.result())
        except StopAsyncIteration:
            return
        except NexoError as error:
            yield b"event: problem\ndata: " + _encode(Problem(error.code, error.message)) + b"\n\n"
        finally:
            stopping.cancel()

    async def _end(self) -> None:
        await self.body_iterator.aclose()  # type: ignore[attr-defined]
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.gather(self._coming, return_exceptions=True)
        await self._rows.aclose()
