"""The AsyncAPI document: what comes over the web socket and as server-sent events."""

from __future__ import annotations

from typing import Any

import msgspec

from nexo.admin.api.events import MessageEvent, RecordEvent
from nexo.admin.http import sockets
from nexo.admin.http.routes import PREFIX
from nexo.version import __version__

_REFS = "#/components/schemas/{name}"
_REQUESTS = (sockets.SocketSubscribe, sockets.Unsubscribe, sockets.Follow, sockets.SocketPublish)
_EVENTS = (MessageEvent, RecordEvent, sockets.SocketFinished, sockets.SocketRefused)
SOCKET = f"{PREFIX}/socket"


def document() -> dict[str, Any]:
    """AsyncAPI 3.0."""
    kinds = (*_REQUESTS, *_EVENTS)
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REFS)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Nexo events",
            "version": __version__,
            "description": "Live messages and records. A token is `?token=…`, or a bearer header.",
        },
        "servers": {
            "web": {"host": "127.0.0.1:8080", "protocol": "ws", "description": "`wss` with TLS."}
        },
        "channels": {
            "socket": _channel(SOCKET, kinds, "JSON in text frames, both ways."),
            "events": _channel(f"{PREFIX}/events", (MessageEvent,), _SSE),
            "streamEvents": _channel(f"{PREFIX}/stream/events", (RecordEvent,), _SSE),
        },
        "operations": {
            "ask": _operation("receive", "socket", _REQUESTS),
            "tell": _operation("send", "socket", _EVENTS),
            "messages": _operation("send", "events", (MessageEvent,)),
            "records": _operation("send", "streamEvents", (RecordEvent,)),
        },
        "components": {
            "schemas": schemas,
            "messages": {kind.__name__: _message(kind) for kind in kinds},
        },
    }


_SSE = "Server-sent events; `id` says where to resume, `problem` ends them."


def _channel(address: str, kinds: tuple[Any, ...], text: str) -> dict[str, Any]:
    messages = {one.__name__: {"$ref": f"#/components/messages/{one.__name__}"} for one in kinds}
    return {"address": address, "description": text, "messages": messages}


def _operation(action: str, channel: str, kinds: tuple[Any, ...]) -> dict[str, Any]:
    where = f"#/channels/{channel}"
    messages = [{"$ref": f"{where}/messages/{kind.__name__}"} for kind in kinds]
    return {"action": action, "channel": {"$ref": where}, "messages": messages}


def _message(kind: Any) -> dict[str, Any]:
    summary = (kind.__doc__ or "").strip().partition("\n")[0]
    payload = {"$ref": _REFS.format(name=kind.__name__)}
    return {"contentType": "application/json", "summary": summary, "payload": payload}
