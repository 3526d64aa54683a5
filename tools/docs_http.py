"""The reference page of the HTTP API, from the table of endpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from nexo.admin.api import TABLE
from nexo.admin.openapi import document
from nexo.admin.routes import Endpoint
from tools.docs_text import table

_INTRO = """# HTTP API

Everything the [dashboard](../guide/dashboard.md) shows and does is an HTTP request that scripts
may send too. The OpenAPI document is at `/api/v1/openapi.json`.

* `GET` looks and takes query parameters. `POST` acts and takes a JSON body; it needs the headers
  `Content-Type: application/json` and `X-Nexo: 1`, which a page of another site cannot send.
* A refusal is JSON, `{"code": "NOT_FOUND", "message": "…"}`, with the codes of the
  [client's errors](../guide/client.md), and a 4xx status. 503 means that a broker restarts or
  refuses writes for now.
* Lists are cut: `limit` and `offset`, or a `cursor`, give the next page.
* A value is `{"type": "json" | "text" | "bytes", "text": "…"}`: JSON source, the text itself, or
  base64. What is too large to show is cut, and says so in `truncated`.
* Names of queues and streams may hold `/`, so they are parameters and never part of a path.
* With authentication on, send a token as `Authorization: Bearer …`, or `POST /api/v1/login`
  with `{"user": …, "password": …}` and keep the cookie. What a user may do is what the brokers
  grant that user.

Besides: `/health` (the process lives), `/ready` (every broker answers; 503 if not) and `/metrics`
(Prometheus).
"""


def page() -> str:
    """The whole page."""
    described = document(TABLE)
    parts = [_INTRO]
    for tag, rows in groupby(TABLE, key=lambda row: row.tag):
        if f"\n## {tag}\n" not in parts:
            parts.append(f"\n## {tag}\n")
        parts.extend(_endpoint(row, described) for row in rows)
    return "".join(parts)


def _endpoint(row: Endpoint, described: dict[str, Any]) -> str:
    operation = described["paths"][row.path][row.method.lower()]
    text = f"\n### `{row.method} {row.path}`\n\n{row.summary}\n"
    if row.live:
        text += "\nAnswers with server-sent events.\n"
    schemas = described["components"]["schemas"]
    fields = list(_body(operation, schemas) if row.method == "POST" else _query(operation))
    return text + (f"\n{table(('field', 'what', 'default'), fields)}" if fields else "")


def _query(operation: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for field in operation["parameters"]:
        yield _field(field["name"], field["schema"], field["required"])


def _body(operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = schemas[reference.rpartition("/")[2]]
    for name, field in schema["properties"].items():
        yield _field(name, field, name in schema.get("required", []))


def _field(name: str, schema: dict[str, Any], required: bool) -> tuple[str, str, str]:
    default = "required" if required else f"`{json.dumps(schema.get('default'))}`"
    return f"`{name}`", _kind(schema), default


def _kind(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return "value" if name == "NewValue" else name
    if "anyOf" in field:
        return " or ".join(_kind(choice) for choice in field["anyOf"])
    if "enum" in field:
        return " or ".join(f"`{choice}`" for choice in field["enum"])
    kind = str(field.get("type", "any"))
    limits = [str(field[key]) for key in ("minimum", "maximum") if key in field]
    return f"{kind}, {' to '.join(limits)}" if len(limits) == 2 else kind
