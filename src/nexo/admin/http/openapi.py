"""The OpenAPI document, made of the table of endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from nexo.admin.http import examples
from nexo.admin.http.replies import HealthReply, Problem, Ready
from nexo.admin.http.routes import PREFIX, Endpoint, Nothing
from nexo.admin.http.sessions import COOKIE, Login, SessionView
from nexo.version import __version__


@dataclass(frozen=True, slots=True)
class Other:
    """A path beside the table."""

    method: str
    path: str
    summary: str
    gives: type
    refusals: dict[str, type] = field(default_factory=dict)
    takes: type = Nothing
    tag: str = "Server"
    live: bool = False


_ACTION = {
    "name": "X-Nexo",
    "in": "header",
    "required": True,
    "schema": {"const": "1"},
    "description": "Not needed with a bearer token.",
}
_JSON = "application/json"
_EVENTS = "The data of each event; that of an event named `problem`, the last, is a Problem."
_ONE_OF = {"NewValue": ("text", "data"), "SeekAsk": ("to", "offset", "time_ms")}
"""Fields of which a request has exactly one."""
_REFS = "#/components/schemas/{name}"
_REFUSALS = {
    "400": "The request is malformed or contradicts itself.",
    "401": "A login is required.",
    "403": "The user may not do this, or the request may be forged.",
    "404": "The named thing does not exist.",
    "409": "The request contradicts what exists.",
    "413": "The body is too large.",
    "429": "Too many logins failed.",
    "503": "The broker cannot do this now.",
    "504": "The broker did not answer in time.",
}
_OTHERS = (
    Other("GET", "/health", "The process of the dashboard lives.", HealthReply),
    Other("GET", "/ready", "Whether every broker answers.", Ready, {"503": Ready}),
    Other("GET", "/metrics", "What Prometheus reads.", str, dict.fromkeys(("401", "403"), Problem)),
    Other("GET", f"{PREFIX}/session", "Who is logged in.", SessionView),
    Other("POST", f"{PREFIX}/login", "Log in; the reply sets a cookie.", SessionView,
          dict.fromkeys(("400", "401", "403", "413", "429", "503", "504"), Problem), takes=Login),
    Other("POST", f"{PREFIX}/logout", "End the login of the cookie.", SessionView,
          {"403": Problem}),
)  # fmt: skip
_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token of `nexo user token`."},
    "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "Of a login."},
}


def document(table: Iterable[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    rows: list[Endpoint | Other] = [*table, *_OTHERS]
    types = {repr(kind): kind for row in rows for kind in (row.takes, row.gives)}
    types[repr(Problem)] = Problem
    schemas, components = msgspec.json.schema_components(types.values(), ref_template=_REFS)
    for name, names in _ONE_OF.items():
        components[name]["oneOf"] = [{"required": [each]} for each in names]
    by_key = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, by_key, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Nexo",
            "version": __version__,
            "description": (
                "GET reads, POST acts. POST needs the header `X-Nexo: 1`. "
                "A value without `type` is JSON source."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
        "security": [{}, *({name: []} for name in _SCHEMES)],
    }


def _operation(
    row: Endpoint | Other, schemas: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    gives, takes = schemas[repr(row.gives)], schemas[repr(row.takes)]
    media = "text/event-stream" if row.live else "text/plain" if row.gives is str else _JSON
    if media == "text/event-stream":
        gives = {"anyOf": [gives, schemas[repr(Problem)]], "description": _EVENTS}
    success = _reply(row.summary, media, gives)
    if media == _JSON:
        success["content"][media]["example"] = examples.reply(gives, components)
    operation: dict[str, Any] = {
        "tags": [row.tag],
        "summary": row.summary,
        "operationId": f"{row.tag.lower().replace('/', '')}_{_name(row)}",
        "parameters": [_ACTION] if row.method == "POST" else _parameters(takes, components),
        "responses": {"200": success}
        | {
            status: _reply(_REFUSALS[status], _JSON, schemas[repr(kind)])
            for status, kind in _refusals(row).items()
        },
    }
    if row.method == "POST":
        operation["requestBody"] = _body(takes, components)
    if isinstance(row, Other) and ("401" not in row.refusals or row.takes is Login):
        operation["security"] = []
    return operation


def _name(row: Endpoint | Other) -> str:
    return row.path.rpartition("/")[2] if isinstance(row, Other) else row.run.__name__


def _refusals(row: Endpoint | Other) -> dict[str, type]:
    """The kind of reply by status."""
    if isinstance(row, Other):
        return row.refusals
    rare = {"429"} if row.method == "POST" else {"413", "429"}
    return {status: Problem for status in _REFUSALS if status not in rare}


def _body(takes: Any, components: dict[str, Any]) -> dict[str, Any]:
    example = examples.request(takes, components)
    content = {_JSON: {"schema": takes, "example": example}}
    return {"required": bool(example), "content": content}


def _parameters(takes: Any, components: dict[str, Any]) -> list[dict[str, Any]]:
    schema = components[takes["$ref"].rpartition("/")[2]]
    example = examples.request(takes, components)
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": found}
        | ({"example": example[name]} if name in example else {})
        for name, found in schema["properties"].items()
    ]


def _reply(text: str, media: str, schema: Any) -> dict[str, Any]:
    return {"description": text, "content": {media: {"schema": schema}}}
