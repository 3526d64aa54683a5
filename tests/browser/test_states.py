"""What the dashboard shows when something is missing: a login, a permission, a broker (K3, A10)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import nexo
from nexo.access.grants import parse_grant
from nexo.access.users import UsersFile
from nexo.testing import Process, process
from tests.browser.checks import problems_of
from tests.browser.conftest import DESKTOP, PHONE, Dashboard
from tests.integration.admin_api import Api
from tests.processes import broker_pids

pytestmark = pytest.mark.browser

SECRET = "a long secret"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("states") / "nexo"
    users = UsersFile(folder / "users.json")
    users.add("root", SECRET, [parse_grant("*:*:*")])
    users.add("clerk", SECRET, [parse_grant("queue:*:mail*"), parse_grant("store:read:desk/*")])
    users.add("reader", SECRET, [parse_grant("*:read:*")])
    with process(folder, auth=True) as server:
        Api(server.http_url).wait_ready()
        with nexo.connect(server.url, user="root", password=SECRET) as client:
            client.queue("mail").create().push("hello")
            client.queue("payroll").create()
            client.store.set("desk/lamp", "on")
        yield server


@pytest.fixture
def page(browser: Browser, guarded: Process) -> Iterator[Page]:
    """Whoever comes, not yet logged in; fails if a script failed."""
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    dashboard = Dashboard(context.new_page(), guarded.http_url)
    dashboard.page.goto(guarded.http_url)
    yield dashboard.page
    context.close()
    refused = "Failed to load resource"  # Chromium says so of every refusal that is told
    assert [text for text in dashboard.problems if refused not in text] == []


def log_in(page: Page, user: str, password: str = SECRET) -> None:
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.keyboard.press("Enter")


def test_a_wrong_password_is_told_and_tried_again(page: Page) -> None:
    log_in(page, "root", "guess")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("User")).to_have_value("root")
    assert problems_of(page) == []
    log_in(page, "root")
    expect(page.locator("h1")).to_have_text("Overview")
    expect(page.get_by_role("button", name="Log out root")).to_be_visible()


def test_who_may_read_one_queue_finds_it(page: Page) -> None:
    log_in(page, "clerk")
    expect(page.locator("#main .empty")).to_contain_text("You may not see the rest of the overview")
    expect(page.get_by_role("table", name="Busiest queues").locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Queue", exact=True).click()
    expect(page.locator("h1")).to_have_text("Queues")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert problems_of(page) == []
    page.get_by_role("link", name="mail", exact=True).click()
    expect(page.locator("h1")).to_have_text("mail")
    expect(page.locator("tbody tr")).to_contain_text("hello")


def test_who_may_read_some_keys_opens_one_by_its_name(page: Page) -> None:
    log_in(page, "clerk")
    page.get_by_role("link", name="Store", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("store:read:*")
    page.get_by_label("Name of the key").fill("desk/lamp")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("desk/lamp")
    expect(page.locator("pre.code")).to_contain_text("on")


def test_readers_see_which_actions_are_not_theirs_and_why(page: Page) -> None:
    """U7: readers saw buttons that could only fail."""
    log_in(page, "reader")
    page.get_by_role("link", name="Queue", exact=True).click()
    expect(page.get_by_role("button", name="Create a queue")).to_be_disabled()
    page.get_by_role("link", name="mail", exact=True).click()
    expect(page.locator("h1")).to_have_text("mail")
    for name in ("Push a job", "Pause", "Purge", "Delete"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    push = page.get_by_role("button", name="Push a job")
    expect(push).to_have_attribute("title", "This takes the permission queue:write:mail")
    push.click(force=True)
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("link", name="Store", exact=True).click()
    expect(page.get_by_role("button", name="Set a key")).to_be_disabled()
    page.get_by_role("link", name="Pub/Sub", exact=True).click()
    expect(page.get_by_role("button", name="Publish", exact=True)).to_be_disabled()
    assert problems_of(page) == []


def test_who_may_act_on_one_queue_acts_on_it(page: Page) -> None:
    log_in(page, "clerk")
    page.get_by_role("link", name="Queue", exact=True).click()
    expect(page.get_by_role("button", name="Create a queue")).to_be_enabled()
    page.get_by_role("link", name="mail", exact=True).click()
    expect(page.get_by_role("button", name="Purge", exact=True)).to_be_enabled()


def test_a_logout_elsewhere_asks_for_a_login(page: Page) -> None:
    log_in(page, "root")
    expect(page.locator(".card").first).to_be_visible()
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    log_in(page, "root")
    expect(page.locator(".card").first).to_be_visible()


def test_users_see_what_each_may_do_and_end_logins(page: Page, guarded: Process) -> None:
    clerk = page.context.browser.new_context()  # type: ignore[union-attr]
    desk = clerk.new_page()
    desk.goto(guarded.http_url)
    log_in(desk, "clerk")
    expect(desk.locator("h1")).to_have_text("Overview")
    log_in(page, "root")
    expect(page.locator("h1")).to_have_text("Overview")
    page.goto(f"{guarded.http_url}/#/users?name=clerk")
    for size in (DESKTOP, PHONE):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        grants = page.get_by_role("table", name="Permissions").locator("tbody tr")
        expect(grants).to_have_count(2)
        expect(grants.first).to_contain_text("mail*")
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert problems_of(page) == []
    page.get_by_role("button", name="End the login").first.click()
    page.get_by_role("dialog").get_by_role("button", name="End", exact=True).click()
    expect(desk.get_by_role("button", name="Log in")).to_be_visible()
    clerk.close()


def test_a_broker_that_hangs_is_told_and_missed_no_longer_when_it_is_back(
    page: Page, guarded: Process
) -> None:
    log_in(page, "root")
    queue = page.locator(".card", has_text="Queue")
    expect(queue).to_contain_text("up")
    hung = broker_pids(guarded)["queue"]
    os.kill(hung, signal.SIGSTOP)
    try:
        expect(queue).to_contain_text("down")
        expect(page.locator(".alerts")).to_contain_text("the broker does not answer")
        page.get_by_role("link", name="Queue", exact=True).click()
        expect(page.locator("#main")).to_contain_text("Loading")
        expect(page.get_by_role("alert")).to_contain_text("no reply from the broker")
        page.get_by_role("link", name="Overview").click()
    finally:
        os.kill(hung, signal.SIGCONT)
    expect(queue).to_contain_text("up")
    expect(page.locator("#link")).to_have_text("live")


def test_a_page_stays_when_its_next_numbers_cannot_be_had(browser: Browser) -> None:
    """The server may be lost in the middle of a drawing."""
    with process() as server:
        Api(server.http_url).wait_ready()
        page = browser.new_page()
        page.goto(server.http_url)
        expect(page.locator(".card").first).to_be_visible()
        page.route("**/api/v1/history*", lambda route: route.abort())
        for _ in range(2):  # the first one's drawing has ended when the second begins
            with page.expect_event("requestfailed"):
                pass
        expect(page.locator(".failed")).to_have_count(0)
        expect(page.locator(".card").first).to_be_visible()
        page.close()


def test_numbers_of_a_lost_server_are_marked_until_it_is_back(browser: Browser) -> None:
    with process() as server:
        Api(server.http_url).wait_ready()
        page = browser.new_page()
        page.goto(server.http_url)
        expect(page.locator(".card").first).to_be_visible()
        server.terminate()
        expect(page.locator("#lost")).to_contain_text("No connection")
        expect(page.locator(".card").first).to_be_visible()
        server.restart()
        expect(page.locator("#lost")).to_be_hidden()
        page.close()


def test_a_server_without_a_lake_says_the_one_thing_to_type(
    browser: Browser, tmp_path: Path
) -> None:
    with process(tmp_path / "nexo") as server:
        Api(server.http_url).wait_ready()
        dashboard = Dashboard(browser.new_page(), server.http_url)
        page = dashboard.open("pipeline")
        expect(page.locator("#main")).to_contain_text("Nothing has been written to the lake.")
        expect(page.locator("#main code")).to_have_text(["nexo pipeline run"])
        page.close()
    assert dashboard.problems == []
