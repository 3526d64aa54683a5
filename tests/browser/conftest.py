"""One busy server and one Chromium for all browser tests."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import nexo
from nexo.testing import Process, process
from tests.browser.busy import fill, fill_lake, traffic
from tests.integration.admin_api import Api

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip
DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}
IMAGES = Path(__file__).parents[2] / "docs" / "images"
TIMEOUT_MS = 30_000
"""Far more than anything takes, as the machine may be busy."""
expect.set_options(timeout=TIMEOUT_MS)
SHOTS = bool(os.environ.pop("NEXO_SCREENSHOTS", ""))
"""Write the docs' pictures. Taken out, since servers refuse variables they do not know."""
PICTURES = {
    "connections", "overview", "overview-dark", "overview-phone", "pipeline", "pubsub",
    "queue-dead", "queue-working", "store-key", "stream-dark", "stream-groups",
}  # fmt: skip
_WHEREVER = r"""() => {
  const sub = document.querySelector("#main h1 + *");
  if (sub) sub.textContent = sub.textContent.replace(/\/\S+\/nexo\//, "/var/lib/nexo/");
}"""
"""Shows the data where servers usually have it, not where this test put it."""
HISTORY_S = 45
"""How much history the charts of those pictures have."""


def _chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("no chromium: install the Debian package")
    return found


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server with something on every page, and traffic."""
    with process(tmp_path_factory.mktemp("browser") / "nexo") as server:
        Api(server.http_url).wait_ready()
        with nexo.connect(server.url) as client:
            fill(client)
        fill_lake(server.data_dir / "lake")
        with traffic(server.url):
            time.sleep(HISTORY_S if SHOTS else 0)
            yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for one module: while it is open, no other event loop can run in this thread."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=_chromium(), args=list(FLAGS))
        yield opened
        opened.close()


class Dashboard:
    """The dashboard in one browser page, as a user has it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self._url = url
        self.problems: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda said: self._note(said.type, said.text))

    def _note(self, kind: str, text: str) -> None:
        # Chromium reports every refused request; the dashboard shows those as it should.
        if kind == "error" and "status of 4" not in text:
            self.problems.append(text)

    def open(self, where: str) -> Page:
        """Go to ``queue?name=emails`` and wait until it is drawn."""
        self.page.goto(f"{self._url}/#/{where}")
        self.page.locator("#main h1").wait_for()
        return self.page

    def press(self, name: str) -> None:
        """Click the button of that name on the page."""
        self.page.locator("#main").get_by_role("button", name=name, exact=True).first.click()

    def answer(self, verb: str, **fields: str | bool) -> None:
        """Fill in the open dialog, send it, and wait until it worked."""
        dialog = self.page.get_by_role("dialog")
        for name, text in fields.items():
            field = dialog.locator(f"[name={name.replace('__', '-')}]")
            if isinstance(text, bool):
                field.set_checked(text)
            elif field.evaluate("e => e.tagName") == "SELECT":
                field.select_option(text)
            else:
                field.fill(text)
        dialog.get_by_role("button", name=verb, exact=True).click()
        dialog.wait_for(state="detached")

    def shot(self, name: str) -> None:
        """Keep a picture for the docs, if asked to."""
        if SHOTS and name in PICTURES:
            self.page.wait_for_timeout(1_500)
            self.page.get_by_text("Reading the lake").wait_for(state="detached")
            self.page.evaluate(_WHEREVER)
            IMAGES.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=IMAGES / f"{name}.png")


@pytest.fixture
def dashboard(browser: Browser, busy: Process) -> Iterator[Dashboard]:
    """The dashboard on a desk; fails if the browser's console shows an error."""
    context = browser.new_context(viewport=DESKTOP, color_scheme="light")  # type: ignore[arg-type]
    opened = Dashboard(context.new_page(), busy.http_url)
    yield opened
    hacked = opened.page.evaluate("window.hacked")
    context.close()
    assert hacked is None, "a value became markup"
    assert opened.problems == []


@pytest.fixture
def sdk(busy: Process) -> Iterator[nexo.Client]:
    with nexo.connect(busy.url) as client:
        yield client
