"""A Flask application's client, also after a fork (SPEC M4)."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
from flask import Flask

import nexo as nexo_package
from nexo.integrations.flask import FlaskNexo, event
from tests.timing import wait_until


def made(url: str) -> tuple[Flask, FlaskNexo]:
    app, nexo = Flask(__name__), FlaskNexo()
    app.config["NEXO_URL"] = url
    nexo.init_app(app)

    @app.get("/hits")
    def hits() -> dict[str, Any]:
        return {"hits": nexo.store.incr("hits"), "client": id(nexo.client)}

    @app.get("/events")
    def events() -> Any:
        return nexo.events("news", keep_alive=0.05)

    return app, nexo


def test_requests_of_an_app_share_one_client(url: str) -> None:
    app, nexo = made(url)
    other, _ = made(url)
    with app.test_client() as browser, other.test_client() as elsewhere:
        said = [browser.get("/hits").get_json() for _ in range(3)]
        assert [each["hits"] for each in said] == [1, 2, 3]
        assert len({each["client"] for each in said}) == 1
        assert elsewhere.get("/hits").get_json()["client"] != said[0]["client"]
    for each in (app, other):
        with each.app_context():
            nexo.close()


def test_a_forked_worker_uses_the_app_on(url: str) -> None:
    """As gunicorn does with ``--preload``."""
    app, nexo = made(url)
    with app.app_context():
        nexo.queue("mails").create()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                nexo.queue("mails").push("from the child")
                code = 0
            finally:
                os._exit(code)
        nexo.queue("mails").push("from the parent")
        assert os.waitpid(child, 0)[1] == 0
        assert sorted(nexo.queue("mails").pop(10).values()) == ["from the child", "from the parent"]
        nexo.close()


def test_a_client_ends_with_its_app(url: str, recwarn: pytest.WarningsRecorder) -> None:
    app, nexo = made(url)
    with app.app_context():
        nexo.stream("s").create()
        nexo.pubsub.publish("t", 1)
    del app
    gc.collect()
    assert [warning for warning in recwarn if warning.category is ResourceWarning] == []


def test_events_end_with_their_browser(url: str, client: nexo_package.Client) -> None:
    app, nexo = made(url)
    with app.test_client() as browser:
        response = browser.get("/events", buffered=False)
        lines = response.response
        chunks = iter(lines)
        assert next(chunks) == b": ready\n\n"
        assert next(chunks) == b": nothing new\n\n"
        client.pubsub.publish("news", {"a": 1})
        found = next(chunk for chunk in chunks if b"data" in bytes(chunk))  # type: ignore[arg-type]
        assert found == b'data: {"a":1}\n\n'
        assert len(client.pubsub.subscriptions()) == 1
        response.close()
    wait_until(lambda: client.pubsub.subscriptions() == [])
    with app.app_context():
        nexo.close()


def test_an_event_of_several_lines() -> None:
    assert event("a\nb") == "data: a\ndata: b\n\n"
