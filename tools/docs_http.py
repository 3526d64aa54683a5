"""The reference page of the HTTP API, from its OpenAPI document and the notes in the source."""

from __future__ import annotations

import ast
import inspect
import json
import urllib.parse
from collections.abc import Iterator
from itertools import groupby
from typing import Any, get_args, get_type_hints

from nexo.admin.api import TABLE
from nexo.admin.http.openapi import document
from nexo.admin.http.replies import Problem
from nexo.admin.http.routes import Endpoint
from nexo.admin.values import NewValue
from tools.docs_text import member_notes, prose, table

_INTRO = """# HTTP API

Everything the [dashboard](../guide/dashboard.md) shows and does is an HTTP request that scripts
may send too; the [guide](../guide/http.md) shows the use of it. The OpenAPI document is at
`/api/v1/openapi.json`, the AsyncAPI document of events and web sockets at `/api/v1/asyncapi.json`.

* `GET` looks and takes query parameters. `POST` acts and takes a JSON body; it needs the headers
  `Content-Type: application/json` and, without a token, `X-Nexo: 1`, which a page of another site
  cannot send. An
  action without fields needs no body. Another method is 405, with those that are right in `Allow`.
* A refusal is JSON, `{"code": "NOT_FOUND", "message": "…"}`, with the codes of the
  [client's errors](../guide/client.md), and a 4xx status. 503 means that a broker restarts or
  refuses writes for now.
* Lists are cut: `limit` and `offset`, or a `cursor`, give the next page.
* A value is `{"type": "json" | "text" | "bytes", "text": "…"}`: JSON source, the text itself, or
  base64. Without `type` it is JSON: `{"text": "hello"}` is refused, for `hello` is no JSON, while
  `{"type": "text", "text": "hello"}` and `{"text": "\\"hello\\""}` are the same text. Instead of
  `text`, `data` is the value as JSON: `{"data": {"n": 1}}`. What is too large to show is cut, and
  says so in `truncated`; what programs fetch and read is whole, as `type` and `data`.
* Names of queues and streams may hold `/`, so they are parameters and never part of a path.
* With authentication on, send a token as `Authorization: Bearer …`, or `POST /api/v1/login`
  with `{"user": …, "password": …}` and keep the cookie. What a user may do is what the brokers
  grant that user. Server-sent events and the web socket also take a token as the parameter `token`.
* Pages of other sites may use the API if `http_origins` names them; their cookies never count.

Besides, with `GET`: `/health` (the process lives) and `/ready` (every broker answers; 503 if not),
which take no login, and `/metrics` (Prometheus), which with authentication on takes permission to
read everything of every broker: `*:read:*`.

The replies below are examples; [Shapes](#shapes) has every field of what is named.
"""
_URL = "http://127.0.0.1:8080"
_TAGS = {row.tag for row in TABLE}
_POST = "-H 'X-Nexo: 1' -H 'Content-Type: application/json'"


def page() -> str:
    """The whole page."""
    described = document(TABLE)
    parts = [_INTRO]
    for tag, rows in groupby(TABLE, key=lambda row: row.tag):
        if f"\n## {tag}\n" not in parts:
            parts.append(f"\n## {tag}\n")
        parts.extend(_endpoint(row, described) for row in rows)
    return "".join([*parts, "\n## Shapes\n", *_shapes(described["components"]["schemas"])])


# -- endpoints ------------------------------------------------------------------


def _endpoint(row: Endpoint, described: dict[str, Any]) -> str:
    operation = described["paths"][row.path][row.method.lower()]
    gives = next(iter(operation["responses"]["200"]["content"].values()))
    text = f"\n### `{row.method} {row.path}`\n\n{row.summary}\n"
    if row.live:
        text += f"\nAnswers with server-sent events, each of the shape {_kind(gives['schema'])}.\n"
    schemas = described["components"]["schemas"]
    fields = list(_body(operation, schemas) if row.method == "POST" else _query(operation))
    said = notes_of(row.takes)
    told = [(*field, said.get(field[0].strip("`"), "")) for field in fields]
    if told:
        text += f"\n{table(('field', 'what', 'default', 'meaning'), told)}"
    if row.live:
        return text
    return text + f"\nGives {_kind(gives['schema'])}.\n\n{_example(row, operation, gives)}"


def _example(row: Endpoint, operation: dict[str, Any], gives: dict[str, Any]) -> str:
    """A request that works as it is, once the names in it exist, and what it may give."""
    reply = json.dumps(gives["example"], ensure_ascii=False)
    if len(reply) > 100:
        reply = json.dumps(gives["example"], indent=2, ensure_ascii=False)
    return f"```console\n$ {_curl(row, operation)}\n{reply}\n```\n"


def _curl(row: Endpoint, operation: dict[str, Any]) -> str:
    if row.method == "GET":
        given = {each["name"]: each["example"] for each in operation["parameters"]
                 if "example" in each}  # fmt: skip
        query = f"?{urllib.parse.urlencode(given, safe='/#')}" if given else ""
        return f"curl '{_URL}{row.path}{query}'"
    body = operation["requestBody"]["content"]["application/json"]["example"]
    if not body:
        return f"curl -X POST -H 'X-Nexo: 1' {_URL}{row.path}"
    return f"curl {_POST} \\\n    -d '{json.dumps(body)}' \\\n    {_URL}{row.path}"


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


# -- shapes ---------------------------------------------------------------------


def _shapes(schemas: dict[str, Any]) -> Iterator[str]:
    """What replies are made of; what requests are is said where they are."""
    types = _types()
    for name in sorted(_replied(schemas)):
        said = notes_of(types[name]) if name in types else {}
        fields = [
            (f"`{field}`", _kind(schema), said.get(field, ""))
            for field, schema in schemas[name].get("properties", {}).items()
        ]
        about = prose(schemas[name].get("description", ""))
        yield f"\n### {name}\n\n{about}\n\n{table(('field', 'what', 'meaning'), fields)}"


def _replied(schemas: dict[str, Any]) -> set[str]:
    described = document(TABLE)
    found = {"NewValue", "Problem"}
    waiting = [
        media["schema"]
        for methods in described["paths"].values()
        for operation in methods.values()
        for media in operation["responses"]["200"]["content"].values()
    ]
    waiting += [
        schemas[name].get("properties", {})  # a request's own fields are where it is described
        for methods in described["paths"].values()
        for operation in methods.values()
        for name in _references(operation.get("requestBody", {}))
    ]
    while waiting:
        for name in _references(waiting.pop()):
            if name not in found:
                found.add(name)
                waiting.append(schemas[name])
    return found


def _references(schema: Any) -> Iterator[str]:
    match schema:
        case {"$ref": str(reference)}:
            yield reference.rpartition("/")[2]
        case dict():
            for inner in schema.values():
                yield from _references(inner)
        case list():
            for inner in schema:
                yield from _references(inner)


def _types() -> dict[str, type]:
    """The classes that replies are made of, by name."""
    found: dict[str, type] = {"NewValue": NewValue, "Problem": Problem}
    waiting: list[Any] = [row.gives for row in TABLE]
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if inspect.isclass(kind) and kind.__name__ not in found and kind.__module__[:4] == "nexo":
            found[kind.__name__] = kind
            waiting += get_type_hints(kind).values()
    return found


def notes_of(kind: type) -> dict[str, str]:
    """What the source says below the fields of a class."""
    tree = ast.parse(inspect.getsource(kind))
    node = tree.body[0]
    assert isinstance(node, ast.ClassDef)
    return member_notes(node)


def _kind(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        again = "-1" if name in _TAGS else ""  # as the second heading of that name is linked to
        return f"[{'value' if name == 'NewValue' else name}](#{name.lower()}{again})"
    if "anyOf" in field:
        return " or ".join(_kind(choice) for choice in field["anyOf"])
    if "enum" in field:
        return " or ".join(f"`{choice}`" for choice in field["enum"])
    if "prefixItems" in field:
        return f"[{', '.join(map(_kind, field['prefixItems']))}]"
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    kind = str(field.get("type", "any"))
    limits = [str(field[key]) for key in ("minimum", "maximum") if key in field]
    return f"{kind}, {' to '.join(limits)}" if len(limits) == 2 else kind
