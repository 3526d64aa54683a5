"""The OpenAPI document, made of the table of endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from nexo import __version__
from nexo.admin.http import examples
from nexo.admin.http.replies import HealthReply, Problem, Ready
from nexo.admin.http.routes import PREFIX, Endpoint, Nothing
from nexo.admin.http.sessions import COOKIE, Login, SessionView


@dataclass(frozen=True, slots=True)
class Other:
    """A path beside the table."""

    method: str
    path: str
    summary: str
    gives: type
    refusals: dict[str, type] = field(default_factory=dict)
    takes: type = Nothing


_ACTION = {
    "name": "X-Nexo",
    "in": "header",
    "required": True,
    "schema": {"const": "1"},
    "description": "Not needed with a bearer token.",
}
_REFS = "#/components/schemas/{name}"
_REFUSALS = {
    "400": "The request makes no sense.",
    "401": "It takes a login.",
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
    table = list(table)
    rows: list[Endpoint | Other] = [*table, *_OTHERS]
    types = {_key(kind): kind for row in rows for kind in (row.takes, row.gives)}
    types[_key(Problem)] = Problem
    schemas, components = msgspec.json.schema_components(types.values(), ref_template=_REFS)
    by_key = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for row in table:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, by_key, components)
    for other in _OTHERS:
        paths[other.path] = {other.method.lower(): _probe(other, by_key, components)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Nexo",
            "version": __version__,
            "description": (
                "GET looks, POST acts. POST needs the header `X-Nexo: 1`. "
                "A value without `type` is JSON source."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
        "security": [{}, *({name: []} for name in _SCHEMES)],
    }


def _probe(row: Other, schemas: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """An operation beside the table, which needs no login but for the metrics."""
    media = "text/plain" if row.gives is str else "application/json"
    operation: dict[str, Any] = {
        "tags": ["Server"],
        "summary": row.summary,
        "operationId": f"server_{row.path.rpartition('/')[2]}",
        "parameters": [],
        "responses": {"200": _reply(row.summary, media, schemas[_key(row.gives)])}
        | {
            status: _reply(_REFUSALS[status], "application/json", schemas[_key(kind)])
            for status, kind in row.refusals.items()
        },
    }
    if media == "application/json":
        example = examples.reply(schemas[_key(row.gives)], components)
        operation["responses"]["200"]["content"][media]["example"] = example
    if row.method == "POST":
        operation["parameters"].append(_ACTION)
        operation["requestBody"] = _body(schemas[_key(row.takes)], components)
    if "401" not in row.refusals or row.takes is Login:
        operation["security"] = []
    return operation


def _operation(row: Endpoint, schemas: dict[str, Any], components: dict[str, Any]) -> Any:
    operation: dict[str, Any] = {
        "tags": [row.tag],
        "summary": row.summary,
        "operationId": f"{row.tag.lower().replace('/', '')}_{row.run.__name__}",
        "responses": {
            "200": _success(row, schemas[_key(row.gives)], components),
        } | {
            status: _reply(text, "application/json", schemas[_key(Problem)])
            for status, text in _REFUSALS.items()
            if status not in ("413", "429") or (status == "413" and row.method == "POST")
        },
    }  # fmt: skip
    takes = schemas[_key(row.takes)]
    if row.method == "POST":
        operation["parameters"] = [_ACTION]
        operation["requestBody"] = _body(takes, components)
    else:
        operation["parameters"] = _parameters(
            components[takes["$ref"].rpartition("/")[2]], examples.request(takes, components)
        )
    return operation


def _body(takes: Any, components: dict[str, Any]) -> dict[str, Any]:
    example = examples.request(takes, components)
    content = {"application/json": {"schema": takes, "example": example}}
    return {"required": bool(example), "content": content}


def _success(row: Endpoint, schema: Any, components: dict[str, Any]) -> dict[str, Any]:
    reply = _reply(row.summary, "text/event-stream" if row.live else "application/json", schema)
    if not row.live:
        reply["content"]["application/json"]["example"] = examples.reply(schema, components)
    return reply


def _parameters(schema: dict[str, Any], example: dict[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "schema": schema_,
        }
        | ({"example": example[name]} if name in example else {})
        for name, schema_ in schema["properties"].items()
    ]


def _reply(text: str, media: str, schema: Any) -> dict[str, Any]:
    return {"description": text, "content": {media: {"schema": schema}}}


def _key(kind: Any) -> str:
    return getattr(kind, "__name__", "") + repr(kind)
