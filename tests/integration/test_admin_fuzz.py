"""Requests made from the OpenAPI document itself, sense and nonsense: never a 5xx (SPEC K4)."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nexo
from nexo.admin.api import TABLE
from nexo.admin.http.openapi import document
from nexo.admin.http.routes import Endpoint
from nexo.errors import InvalidName
from nexo.model import check_name
from nexo.testing import process
from tests.integration.admin_api import ACTION, Api

DOCUMENT = document(TABLE)
SCHEMAS = DOCUMENT["components"]["schemas"]
KNOWN = ("q", "s", "g", "k", "a/b", "#")
"""Names that exist, so that requests get past the first check."""

nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with process(tmp_path_factory.mktemp("fuzz") / "nexo", max_payload_bytes=65_536) as server:
        found = Api(server.http_url)
        found.wait_ready()
        with nexo.connect(server.url) as client:
            client.queue("q").create().push("job")
            client.stream("s").create().publish("record", key="k")
            client.stream("s").consume("g").close()
            client.store.set("k", 1)
        yield found


def of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:  # noqa: PLR0911, PLR0912 - by type
    """Values that fit a schema."""
    if "$ref" in schema:
        return of_object(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return st.one_of([of(choice) for choice in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "string" if "pattern" in schema:
            known = [name for name in KNOWN if re.search(schema["pattern"], name)]
            return st.sampled_from([*known, *known, "x"]) | st.from_regex(schema["pattern"])
        case "string":
            return st.sampled_from(KNOWN) | st.text(
                min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 30), 30)
            )
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "number":
            return st.floats(schema.get("minimum"), schema.get("maximum"), allow_nan=False)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "array":
            return st.lists(of(schema["items"]), max_size=3)
        case [*kinds]:
            return st.one_of([of(schema | {"type": kind}) for kind in kinds])
        case "object" if "properties" in schema:
            return of_object(schema)
        case "object":
            return st.dictionaries(st.text(max_size=8), nonsense, max_size=3)
    return nonsense


def of_object(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: of(field) for name, field in schema["properties"].items()}
    required = schema.get("required", [])
    return st.fixed_dictionaries(
        {name: field for name, field in fields.items() if name in required},
        optional={name: field for name, field in fields.items() if name not in required},
    )


OPERATIONS = [
    (method, path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if "application/json" in operation["responses"]["200"]["content"]
]


@pytest.mark.parametrize(
    ("method", "path", "operation"), OPERATIONS, ids=[f"{m} {p}" for m, p, _ in OPERATIONS]
)
def test_no_request_breaks_an_endpoint(
    api: Api, method: str, path: str, operation: dict[str, Any]
) -> None:
    @settings(
        max_examples=12, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def run(data: st.DataObject) -> None:
        sensible = data.draw(st.integers(0, 3)) > 0
        reply = _ask(api, method, path, operation, data, sensible)
        assert reply.status < 500, reply.body
        if reply.status >= 400:
            assert set(reply.json) - {"field"} == {"code", "message"}
        elif path != "/api/v1/store/clear":
            assert isinstance(reply.json, dict | list)

    run()


def _ask(
    api: Api, method: str, path: str, operation: dict[str, Any], data: st.DataObject, sensible: bool
) -> Any:
    if method == "post":
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        body = data.draw(of(schema) if sensible else nonsense)
        return api.request("POST", path, json.dumps(body).encode(), ACTION)
    fields = {each["name"]: of(each["schema"]) for each in operation["parameters"]}
    query = data.draw(
        st.fixed_dictionaries({}, optional=fields)
        if sensible
        else st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
    )
    text = urllib.parse.urlencode({name: _text(item) for name, item in query.items()})
    return api.request("GET", f"{path}?{text}")


def _text(item: Any) -> str:
    return str(item).lower() if isinstance(item, bool) else str(item)


@pytest.mark.parametrize(
    ("method", "path", "operation"), OPERATIONS, ids=[f"{m} {p}" for m, p, _ in OPERATIONS]
)
def test_the_documented_example_is_a_sensible_request(
    api: Api, method: str, path: str, operation: dict[str, Any]
) -> None:
    """SPEC K4: what the reference shows works, once the names in it exist."""
    api.act("/queue/create", queue="emails")
    api.act("/stream/create", stream="orders", options={"cleanup": "compact"})
    if method == "post":
        body = operation["requestBody"]["content"]["application/json"]["example"]
        reply = api.request("POST", path, json.dumps(body).encode(), ACTION)
    else:
        given = {each["name"]: each.get("example") for each in operation["parameters"]}
        query = {name: item for name, item in given.items() if item is not None}
        reply = api.request("GET", f"{path}?{urllib.parse.urlencode(query)}")
    assert reply.status in (200, 404, 409), reply.body


@given(st.text("aZ9._:/-é ", max_size=6))
def test_the_documented_names_are_those_that_the_server_takes(name: str) -> None:
    schema = SCHEMAS["OneQueue"]["properties"]["queue"]
    fits = re.search(schema["pattern"], name) is not None
    try:
        check_name(name)
    except InvalidName:
        assert not fits
    else:
        assert fits


@pytest.mark.parametrize("row", [row for row in TABLE if not row.live], ids=lambda row: row.path)
def test_the_documented_reply_has_the_shape_of_the_real_one(row: Endpoint) -> None:
    content = DOCUMENT["paths"][row.path][row.method.lower()]["responses"]["200"]["content"]
    example = msgspec.json.encode(content["application/json"]["example"])
    msgspec.json.decode(example, type=row.gives)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 5_000, b'{"key":"\\ud800"}', b"0"])
def test_bytes_that_are_no_json_are_refused(api: Api, body: bytes) -> None:
    assert api.request("POST", "/api/v1/store/set", body, ACTION).status == 400


def test_a_body_past_the_limit_is_refused(api: Api) -> None:
    reply = api.request("POST", "/api/v1/store/set", b"x" * 70_000, ACTION)
    assert (reply.status, reply.json["code"]) == (413, "TOO_LARGE")


def test_the_document_names_every_endpoint_once() -> None:
    ids = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(ids) == len(set(ids))
    for method, _, operation in OPERATIONS:
        assert operation["summary"]
        assert ("requestBody" in operation) == (method == "post")
