"""A page of another site, without our client, as the guide shows it (SPEC O5)."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import nexo
from nexo.access.grants import parse_grant
from nexo.access.users import UsersFile
from nexo.testing import process
from tests.integration.admin_api import Api

pytestmark = pytest.mark.browser

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "http.md"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def site(folder: Path) -> Iterator[str]:
    """The files of a folder at an origin of their own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def snippet(api: str, token: str) -> str:
    """The guide's TypeScript without its types, at another address."""
    text = "".join(re.findall(r"^```ts\n(const .*?)^```$", GUIDE.read_text(), re.M | re.S))
    assert "EventSource" in text
    text = re.sub(r" as \w+", "", text)
    return text.replace("https://nexo.example.com:8080/api/v1", api).replace("…", token)


def test_a_page_of_a_known_site_shows_live_messages(browser: Browser, tmp_path: Path) -> None:
    pages = tmp_path / "site"
    pages.mkdir()
    users = UsersFile(tmp_path / "nexo" / "users.json")
    users.add("root", "a long secret", [parse_grant("*:*:*")])
    users.add("web", None, [parse_grant("pubsub:read:news/#"), parse_grant("pubsub:read:chat/#")])
    token = users.add_token("web", "page")
    with (
        site(pages) as origin,
        process(tmp_path / "nexo", auth=True, http_origins=origin) as server,
    ):
        Api(server.http_url).wait_ready()
        (pages / "index.html").write_text("<!doctype html><body><script src=page.js></script>")
        (pages / "page.js").write_text(snippet(f"{server.http_url}/api/v1", token))
        with nexo.connect(server.url, user="root", password="a long secret") as client:
            client.pubsub.publish("news/first", {"n": 1}, retain=True)
            client.pubsub.publish("chat/here", "hi", retain=True)
            page = browser.new_page()
            page.goto(origin)
            expect(page.locator("li")).to_have_text('news/first: {"n":1}')
            expect(page).to_have_title("chat/here")
            client.pubsub.publish("news/second", 2)
            expect(page.locator("li").last).to_have_text("news/second: 2")
        asked = """async ([url, headers]) => {
          const reply = await fetch(url, { headers, credentials: "include" }).catch(() => null);
          return reply ? reply.status : 0;
        }"""
        url = f"{server.http_url}/api/v1/pubsub/topics"
        bearer = {"authorization": f"Bearer {token}"}
        plain = "async ([url, headers]) => (await fetch(url, { headers })).status"
        assert page.evaluate(plain, [url, bearer]) == 200
        assert page.evaluate(asked, [url, bearer]) == 0, "never with cookies"
        page.close()
