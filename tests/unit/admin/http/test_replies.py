"""Bodies of requests: bounded, and a caller who leaves is no error of ours (finding G4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from nexo.admin.http.replies import body_of
from nexo.errors import ConnectionLost, PayloadTooLarge

LIMIT = 8


def request(*chunks: bytes | None, length: int | None = None) -> Request:
    """A request whose body arrives in chunks; None is a caller who leaves."""
    coming = list(chunks)

    async def receive() -> dict[str, Any]:
        chunk = coming.pop(0)
        if chunk is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunk, "more_body": bool(coming)}

    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    app = SimpleNamespace(state=SimpleNamespace(max_body_bytes=LIMIT))
    return Request({"type": "http", "headers": headers, "app": app}, receive)


async def test_a_body_up_to_the_limit_is_read() -> None:
    assert await body_of(request(b"1234", b"5678", length=8)) == b"12345678"


async def test_a_body_over_the_limit_is_refused_when_it_is_announced() -> None:
    with pytest.raises(PayloadTooLarge):
        await body_of(request(length=LIMIT + 1))  # nothing is read


async def test_a_body_over_the_limit_is_refused_as_it_arrives() -> None:
    with pytest.raises(PayloadTooLarge):
        await body_of(request(b"1234", b"56789", b"more"))


async def test_a_caller_who_leaves_is_an_error_that_is_not_logged() -> None:
    with pytest.raises(ConnectionLost):
        await body_of(request(b"1234", None, length=8))
