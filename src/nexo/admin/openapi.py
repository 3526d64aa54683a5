"""The OpenAPI document, made of the table of endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from nexo import __version__
from nexo.admin import examples
from nexo.admin.replies import Problem
from nexo.admin.routes import Endpoint

_REFS = "#/components/schemas/{name}"
_REFUSALS = {
    "400": "The request makes no sense.",
    "404": "The named thing does not exist.",
    "409": "The request contradicts what exists.",
    "503": "The broker cannot do this now.",
}


def document(table: Iterable[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    table = list(table)
    types = {_key(kind): kind for row in table for kind in (row.takes, row.gives)}
    types[_key(Problem)] = Problem
    schemas, components = msgspec.json.schema_components(types.values(), ref_template=_REFS)
    by_key = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for row in table:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, by_key, components)
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
        "components": {"schemas": components},
    }


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
        },
    }  # fmt: skip
    takes = schemas[_key(row.takes)]
    if row.method == "POST":
        operation["parameters"] = [
            {"name": "X-Nexo", "in": "header", "required": True, "schema": {"const": "1"}}
        ]
        example = examples.request(takes, components)
        content = {"application/json": {"schema": takes, "example": example}}
        operation["requestBody"] = {"required": bool(example), "content": content}
    else:
        operation["parameters"] = _parameters(
            components[takes["$ref"].rpartition("/")[2]], examples.request(takes, components)
        )
    return operation


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
            "schema": field,
        }
        | ({"example": example[name]} if name in example else {})
        for name, field in schema["properties"].items()
    ]


def _reply(text: str, media: str, schema: Any) -> dict[str, Any]:
    return {"description": text, "content": {media: {"schema": schema}}}


def _key(kind: Any) -> str:
    return getattr(kind, "__name__", "") + repr(kind)
