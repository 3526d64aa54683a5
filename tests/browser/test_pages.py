"""Every page: drawn without errors, on a phone, by keyboard, in both themes, accessible (K3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import nexo
from nexo.testing import Process, process
from tests.browser.busy import SCRIPT
from tests.browser.checks import problems_of
from tests.browser.conftest import DESKTOP, PHONE, Dashboard
from tests.integration.admin_api import Api

pytestmark = pytest.mark.browser

PAGES = {
    "overview": "overview",
    "store": "store",
    "store-key": "store?name=config/limits",
    "pubsub": "pubsub",
    "queue": "queue",
    "queue-dead": "queue?name=emails&tab=dead",
    "queue-working": "queue?name=payments/eu&tab=working",
    "stream": "stream?name=orders",
    "stream-groups": "stream?name=clicks&tab=groups",
    "pipeline": "pipeline",
    "pipeline-stream": "pipeline?name=orders",
    "sql": "sql",
    "connections": "connections",
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_drawn_and_accessible(dashboard: Dashboard, name: str) -> None:
    page = dashboard.open(PAGES[name])
    page.locator("#main .panel").first.wait_for()
    assert problems_of(page) == []
    dashboard.shot(name)


@pytest.mark.parametrize(
    "name", ["overview", "queue-dead", "stream", "store-key", "pubsub", "pipeline"]
)
def test_the_dark_theme_is_readable(dashboard: Dashboard, name: str) -> None:
    page = dashboard.page
    page.emulate_media(color_scheme="dark")
    dashboard.open(PAGES[name])
    page.locator("#main .panel").first.wait_for()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 22)"
    assert problems_of(page) == []
    dashboard.shot(f"{name}-dark")


def test_the_theme_is_chosen_and_remembered(dashboard: Dashboard) -> None:
    page = dashboard.open("store")
    page.get_by_role("button", name="Use the dark theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    expect(page.get_by_role("button", name="Use the light theme")).to_be_visible()


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_is_wide_enough(browser: Browser, busy: Process, name: str) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)  # type: ignore[arg-type]
    dashboard = Dashboard(context.new_page(), busy.http_url)
    page = dashboard.open(PAGES[name])
    page.locator("#main .panel").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.locator("#nav a").count() == 8
    assert small_targets(page) == []
    assert half_shown(page) == []
    if name in ("overview", "queue-dead"):
        dashboard.shot(f"{name}-phone")
    context.close()
    assert dashboard.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["queue", "stream"])
def test_options_fit_a_phone_and_are_labelled(
    browser: Browser, busy: Process, name: str, theme: str
) -> None:
    context = browser.new_context(viewport=PHONE, color_scheme=theme)  # type: ignore[arg-type]
    dashboard = Dashboard(context.new_page(), busy.http_url)
    page = dashboard.open(name)
    dashboard.press(f"Create a {name}")
    dialog = page.get_by_role("dialog")
    tab_to(page, "More options")
    page.keyboard.press("Enter")
    expect(dialog.locator("details")).to_have_attribute("open", "")
    assert problems_of(page) == []
    assert dialog.evaluate("e => e.scrollWidth <= e.clientWidth")
    expect(dialog.get_by_role("button", name="Create", exact=True)).to_be_in_viewport()
    context.close()
    assert dashboard.problems == []


def small_targets(page: Page) -> list[str]:
    """Buttons and links too small for a finger (U7: those of the pages were)."""
    return page.evaluate(  # type: ignore[no-any-return]
        """() => [...document.querySelectorAll('#nav a, #main a, #main button')]
        .filter((e) => e.offsetParent && e.getBoundingClientRect().height < 24)
        .map((e) => e.textContent)"""
    )


def half_shown(page: Page) -> list[str]:
    """Tables and tabs of which a phone shows only the left part."""
    return page.evaluate(  # type: ignore[no-any-return]
        """() => [...document.querySelectorAll('#main .scroll:has(> table), #main .tabs')]
        .filter((e) => e.scrollWidth > e.clientWidth + 1)
        .map((e) => `${e.innerText}: ${e.scrollWidth} of ${e.clientWidth}`)"""
    )


def test_everything_is_reached_by_keyboard(dashboard: Dashboard) -> None:
    page = dashboard.open("overview")
    for key, title in [("s", "Store"), ("q", "Queues"), ("t", "Streams"), ("c", "Connections")]:
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.locator("h1")).to_have_text(title)
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.locator("h1")).to_have_text("Queues")
    page.keyboard.press("/")
    page.keyboard.type("emails")
    expect(page.locator("tbody tr")).to_have_count(1)
    tab_to(page, "emails")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("emails")
    tab_to(page, "Push a job")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.evaluate("document.activeElement.textContent") == "Push a job"


def tab_to(page: Page, text: str) -> None:
    """Press Tab until the element of that text has the focus, which must be visible."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == text:
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid"
            return
    raise AssertionError(f"{text!r} is not reached by Tab")


def test_focus_survives_live_updates(dashboard: Dashboard) -> None:
    page = dashboard.open("queue")
    page.get_by_role("link", name="thumbnails").focus()
    with page.expect_response("**/queue/list*"):
        pass
    page.wait_for_timeout(300)
    assert page.evaluate("document.activeElement.textContent") == "thumbnails"


def test_numbers_move_by_themselves(dashboard: Dashboard) -> None:
    page = dashboard.open("overview")
    card = page.locator(".card", has_text="Store").locator("strong")
    seen = {card.inner_text()}
    for _ in range(300):
        page.wait_for_timeout(100)
        seen.add(card.inner_text())
        if len(seen) > 2:
            break
    assert len(seen) > 2
    assert page.locator("#link").inner_text() == "live"


def test_links_into_the_dashboard_and_back_work(dashboard: Dashboard) -> None:
    page = dashboard.open("queue?name=emails&tab=scheduled")
    expect(page.locator("#main")).to_contain_text("Scheduled jobs")
    page.get_by_role("link", name="Options").click()
    expect(page.locator("#main")).to_contain_text("max_retries")
    page.go_back()
    expect(page.locator("#main")).to_contain_text("Scheduled jobs")


@pytest.mark.parametrize(
    "where",
    [
        "store?search=xss",
        f"store?name=xss/{SCRIPT.replace('/', '%2F')}",
        "store?name=user:7",
        "pubsub",
        "queue?name=payments/eu",
        "queue?name=emails&tab=dead",
        "stream?name=clicks&offset=0",
        "stream?name=clicks&tab=groups",
        "pipeline?name=orders",
    ],
)
def test_markup_in_data_is_shown_as_text(dashboard: Dashboard, where: str) -> None:
    page = dashboard.open(where)
    expect(page.locator("#main")).to_contain_text("<script>")
    assert page.locator("#main script").count() == 0


def test_what_does_not_exist_is_said(dashboard: Dashboard) -> None:
    page = dashboard.page
    page.goto(f"{dashboard._url}/#/queue?name=no-such-queue")
    expect(page.get_by_role("alert")).to_contain_text("no-such-queue")


def test_an_unknown_address_is_said_to_be_none(dashboard: Dashboard) -> None:
    """U7: it showed the overview."""
    page = dashboard.open("no-such-place?name=x")
    expect(page.locator("h1")).to_have_text("No such page")
    expect(page.locator("#main")).to_contain_text("no-such-place")
    assert page.title() == "No such page · Nexo"
    assert page.locator("#nav [aria-current]").count() == 0
    page.locator("#main").get_by_role("link", name="Overview").click()
    expect(page.locator("h1")).to_have_text("Overview")


def test_levels_of_topics_sum_over_every_page(browser: Browser, tmp_path: Path) -> None:
    """U7: the tree summed the 200 topics of the page it showed."""
    with process(tmp_path / "nexo") as server:
        Api(server.http_url).wait_ready()
        with nexo.connect(server.url) as client:
            for n in range(230):
                client.pubsub.publish(f"plant/room-{n:03}", n)
        page = Dashboard(browser.new_page(), server.http_url).open("pubsub")
        line = page.get_by_role("table", name="Topics").locator("tbody tr").first
        expect(line).to_contain_text("plant")
        expect(line.locator(".badge")).to_have_text("230")
        expect(line.locator("td").nth(2)).to_have_text("230")
        page.close()


def test_an_empty_server_explains_itself(browser: Browser, tmp_path: Path) -> None:
    with process(tmp_path / "nexo") as server:
        Api(server.http_url).wait_ready()
        context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
        dashboard = Dashboard(context.new_page(), server.http_url)
        for where in ("overview", "store", "pubsub", "queue", "stream", "pipeline"):
            page = dashboard.open(where)
            expect(page.locator(".empty").first).to_be_visible()
        context.close()
        assert dashboard.problems == []


# -- names of any length ------------------------------------------------------------------

LONG = "x" * 60 + "/" + "y" * 139
WORDY = "Traceback (most recent call last): " + "no such mailbox " * 40
LONG_PAGES = (
    "overview", "store", f"store?name={LONG}", "pubsub", "queue", f"queue?name={LONG}&tab=dead",
    f"queue?name={LONG}&tab=cron", "stream", f"stream?name={LONG}",
    f"stream?name={LONG}&tab=groups", "connections",
)  # fmt: skip


@pytest.fixture(scope="module")
def wordy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server of long names and long errors."""
    with process(tmp_path_factory.mktemp("wordy") / "nexo") as server:
        Api(server.http_url).wait_ready()
        with nexo.connect(f"{server.url}?client={'c' * 200}") as client:
            client.store.map(LONG).set_many({f"{n:03}{LONG}": LONG for n in range(150)})
            for room in range(60):
                client.pubsub.publish(f"sensors/{LONG}/room-{room}/heat", 20, retain=True)
            queue = client.queue(LONG).create(max_retries=0)
            queue.push({"text": WORDY})
            queue.pop()[0].nack(WORDY)
            queue.cron.set(LONG, "0 3 * * *", WORDY)
            stream = client.stream(LONG).create()
            stream.publish(WORDY, key=LONG)
            with stream.consume(LONG, max_deliveries=1) as consumer:
                next(iter(consumer)).nack(reason=WORDY)
            yield server


@pytest.mark.parametrize("width", [1440, 390])
def test_long_names_hide_no_button_and_no_number(
    browser: Browser, wordy: Process, width: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    dashboard = Dashboard(context.new_page(), wordy.http_url)
    for where in LONG_PAGES:
        page = dashboard.open(where)
        page.locator("#main .panel").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, where
        assert cut_off(page, "td.acts button" if width < 500 else "td") == [], where
    context.close()
    assert dashboard.problems == []


def cut_off(page: Page, selector: str) -> list[str]:
    """What of that kind lies outside of its panel, so that one has to scroll for it."""
    return page.evaluate(  # type: ignore[no-any-return]
        """(selector) => [...document.querySelectorAll(selector)].filter((e) => e.offsetParent)
        .filter((e) => e.getBoundingClientRect().right > e.closest(".panel").getBoundingClientRect().right + 1)
        .map((e) => e.outerHTML.slice(0, 120))""",  # noqa: E501
        selector,
    )


def test_many_topics_stay_closed_and_lone_levels_are_one_line(
    browser: Browser, wordy: Process
) -> None:
    page = Dashboard(browser.new_page(), wordy.http_url).open("pubsub")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(f"sensors/{LONG}")
    expect(rows).to_contain_text("60")
    page.get_by_role("button", name="Open sensors").click()
    expect(rows).to_have_count(61)
    expect(rows.nth(1)).to_contain_text("room-0/heat")
    page.close()


def test_the_items_of_a_collection_are_turned_and_shown(browser: Browser, wordy: Process) -> None:
    page = Dashboard(browser.new_page(), wordy.http_url).open(f"store?name={LONG}")
    expect(page.locator("tbody tr")).to_have_count(100)
    page.get_by_role("button", name="Next").click()
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("button", name="Show 149").click()
    expect(page.get_by_role("dialog").locator("pre")).to_contain_text(LONG)
    page.close()
