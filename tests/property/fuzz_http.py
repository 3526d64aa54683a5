"""The dashboard and the API in memory, for fuzzing: raw bytes in, no bug out."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Any

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from nexo.admin.api import TABLE
from nexo.admin.app import AdminApp
from nexo.admin.context import ServerAccess
from nexo.admin.http.openapi import document
from nexo.client.address import Address
from nexo.server.embedded import EmbeddedServer
from tests.integration.admin_api import ACTION
from tests.memory_files import MemoryFiles
from tests.property.fuzz_services import Fresh, Wire, settings_in

REPLY_S = 2.0


class Http(Fresh):
    """The dashboard and the API over four brokers: raw bytes as they come from a socket.

    The first byte says whether the length of the body is set right, so that changed bodies
    get past it.
    """

    def __init__(self, *, auth: bool) -> None:
        super().__init__()
        self._auth = auth
        self._server: EmbeddedServer
        self._admin: AdminApp

    async def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        settings = settings_in(Path(self._folder.name), auth=self._auth)
        self._server = EmbeddedServer(settings, make_files=MemoryFiles)
        await self._server.open()
        self._admin = AdminApp(ServerAccess(settings, Address("127.0.0.1", self._server.port)))
        self._config = uvicorn.Config(
            self._admin.app, lifespan="off", http="h11", ws="none", log_config=None
        )
        self._config.load()
        self._state = ServerState()

    async def _feed(self, data: bytes) -> None:
        protocol = H11Protocol(self._config, self._state, {})
        wire = Wire(protocol)
        if len(data) > 1:
            protocol.data_received(_sized(data[1:]) if data[0] < 128 else data[1:])
        end = asyncio.get_running_loop().time() + REPLY_S
        while self._waits(protocol, wire) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0)
        wire.close()
        await asyncio.sleep(0)
        assert not re.match(rb"HTTP/1.1 500", wire.said), bytes(wire.said)

    def _waits(self, protocol: H11Protocol, wire: Wire) -> bool:
        """Whether a whole request has come and its whole reply has not; a live view has none."""
        whole = protocol.conn.their_state not in (h11.IDLE, h11.SEND_BODY, h11.ERROR)
        replied = protocol.cycle is None or protocol.cycle.response_complete
        return whole and not replied and b"event-stream" not in wire.said

    async def _stop(self) -> None:
        self._admin.stop()
        await self._admin.context.client.close()
        await self._server.crash()
        self._folder.cleanup()


def _sized(data: bytes) -> bytes:
    head, gap, body = data.partition(b"\r\n\r\n")
    return (
        re.sub(rb"(?i)content-length: *\d+", b"content-length: %d" % len(body), head) + gap + body
    )


def http_seeds() -> list[bytes]:
    """A request to every endpoint, from the OpenAPI document."""
    found = document(TABLE)
    schemas = found["components"]["schemas"]
    seeds = [_http("GET", path) for path in ("/", "/health", "/metrics", "/api/v1/session")]
    seeds.append(_http("POST", "/api/v1/login", b'{"user": "ana", "password": "x"}'))
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            if method == "post":
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                seeds.append(_http("POST", path, msgspec.json.encode(_sample(schema, schemas))))
            else:
                query = "&".join(
                    f"{each['name']}={_sample(each['schema'], schemas)}"
                    for each in operation["parameters"]
                )
                seeds.append(_http("GET", f"{path}?{query}"))
    return seeds


def _http(method: str, path: str, body: bytes = b"") -> bytes:
    headers = {"host": "127.0.0.1", "content-length": str(len(body)), **ACTION}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    return b"\0" + "\r\n".join([*lines, "", ""]).encode() + body


def _sample(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """A value that fits a schema, about ``thing`` where that is a text."""
    if "$ref" in schema:
        fields = schemas[schema["$ref"].rpartition("/")[2]]["properties"]
        return {name: _sample(field, schemas) for name, field in fields.items()}
    if "anyOf" in schema:
        return _sample(schema["anyOf"][0], schemas)
    if "enum" in schema:
        return schema["enum"][0]
    samples = {"string": "thing", "boolean": False, "null": None, "array": [], "object": {}}
    return samples.get(schema.get("type", ""), schema.get("minimum", 1))
