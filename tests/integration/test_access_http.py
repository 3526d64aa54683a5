"""Every route of the HTTP port against who asks, generated from the table of routes (SPEC A10)."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

import pytest

from nexo.access.users import UsersFile
from nexo.admin.api import TABLE
from nexo.admin.http.routes import Endpoint
from nexo.testing import Process
from tests.timing import wait_until

ROUTES = [*TABLE]
OPEN = {"/health", "/ready"}
_HEADERS = {"X-Nexo": "1", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("http") / "nexo"
    UsersFile(folder / "users.json").add("nobody", None, [])
    process = Process(folder, auth=True)
    process.start()
    wait_for_http(process)
    yield process
    process.close()


@pytest.fixture(scope="module")
def token(served: Process) -> str:
    return UsersFile(served.data_dir / "users.json").add_token("nobody", "test")


def wait_for_http(process: Process) -> None:
    wait_until(
        lambda: ask(process, "GET", "/ready")[0] == 200,
        what="the dashboard did not come up",
        every_s=0.05,
        despite=(OSError,),
    )


def ask(process: Process, method: str, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", process.http_port, timeout=20)
    try:
        body = json.dumps({}) if method == "POST" else None
        connection.request(method, path, body, _HEADERS | headers)
        reply = connection.getresponse()
        return reply.status, reply.read(2_000)
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("row", ROUTES, ids=lambda row: f"{row.method} {row.path}")
def test_without_a_login_no_route_answers(served: Process, row: Endpoint) -> None:
    status, body = ask(served, row.method, row.path)
    assert status == 401, body
    assert b"UNAUTHENTICATED" in body


@pytest.mark.slow
def test_metrics_need_a_login_and_health_does_not(served: Process) -> None:
    assert ask(served, "GET", "/metrics")[0] == 401
    for path in OPEN:
        assert ask(served, "GET", path)[0] == 200


@pytest.mark.slow
def test_a_wrong_token_or_cookie_is_no_login(served: Process) -> None:
    path = ROUTES[0].path
    assert ask(served, ROUTES[0].method, path, Authorization="Bearer nexo_wrong")[0] == 401
    assert ask(served, ROUTES[0].method, path, Cookie="nexo=wrong; session=wrong")[0] == 401


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", [row for row in ROUTES if row.method == "POST"], ids=lambda row: row.path
)
def test_a_user_without_permissions_changes_nothing(
    served: Process, token: str, row: Endpoint
) -> None:
    """With an empty body most are refused as malformed, the first ones as the token is still
    unknown; none may succeed."""
    status, body = ask(served, "POST", row.path, Authorization=f"Bearer {token}")
    assert status in (400, 401, 403, 404, 405, 415, 422, 429), body
