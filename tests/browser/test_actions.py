"""Every action of the dashboard, done by a browser and checked through the SDK (SPEC K3)."""

from __future__ import annotations

import re

import pytest
from celery import Celery
from playwright.sync_api import Page, Route, expect

import nexo
import nexo.integrations.celery  # as an installed package this is not needed
from nexo.testing import Process
from tests.browser.busy import SCRIPT
from tests.browser.checks import problems_of
from tests.browser.conftest import DESKTOP, PHONE, Dashboard
from tests.timing import wait_until

pytestmark = pytest.mark.browser


# -- store ------------------------------------------------------------------------------


def test_a_key_is_set_edited_expired_and_deleted(dashboard: Dashboard, sdk: nexo.Client) -> None:
    page = dashboard.open("store")
    dashboard.press("Set a key")
    dashboard.answer("Set", key="made/<b>here", value='{"n": 12345678901234567890}', ttl_s="900")
    assert sdk.store.get("made/<b>here") == {"n": 12345678901234567890}
    expect(page.locator("h1")).to_have_text("made/<b>here")
    expect(page.locator("pre.code")).to_contain_text("12345678901234567890")
    dashboard.press("Edit")
    dashboard.answer("Set", value="[1, 2]", ttl_s="")
    assert sdk.store.get("made/<b>here") == [1, 2]
    dashboard.press("Expire")
    dashboard.answer("Change", ttl_s="50")
    assert 40 < (sdk.store.ttl("made/<b>here") or 0) <= 50
    dashboard.press("Delete made/<b>here")
    dashboard.answer("Delete")
    assert sdk.store.get("made/<b>here") is None
    expect(page.locator("h1")).to_have_text("Store")


def test_keys_are_searched_and_paged(dashboard: Dashboard) -> None:
    page = dashboard.open("store")
    page.get_by_role("searchbox").fill("session:")
    expect(page.locator("tbody tr").first).to_contain_text("session:0000")
    dashboard.press("Next")
    expect(page.locator("tbody tr").first).to_contain_text("session:0050")
    page.get_by_role("searchbox").fill("*limits")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert "search=" in page.url
    page.get_by_role("searchbox").fill("nothing like this")
    expect(page.locator(".empty")).to_contain_text("No key matches")


def test_bad_json_is_explained_and_changes_nothing(dashboard: Dashboard, sdk: nexo.Client) -> None:
    page = dashboard.open("store")
    dashboard.press("Set a key")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key", exact=True).fill("bad")
    dialog.locator("[name=value]").fill("{oops")
    dialog.get_by_role("button", name="Set", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("not JSON")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert not sdk.store.exists("bad")


# -- pub/sub ----------------------------------------------------------------------------


def test_messages_are_published_watched_and_cleared(dashboard: Dashboard, sdk: nexo.Client) -> None:
    page = dashboard.open("pubsub?tab=live&pattern=chat/%23")
    expect(page.locator("#main .empty")).to_contain_text("Watching")
    with sdk.pubsub.subscribe("chat/+") as chat:
        dashboard.press("Publish")
        dashboard.answer("Publish", topic="chat/room", value=f'"{SCRIPT}"', retain=True)
        assert next(iter(chat)).value == SCRIPT
    expect(page.locator(".tail li").first).to_contain_text(SCRIPT)
    dashboard.open("pubsub?search=chat")
    page.get_by_role("button", name="Show chat/room").click()
    expect(page.get_by_role("dialog").locator("pre")).to_contain_text(SCRIPT)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Clear chat/room").click()
    dashboard.answer("Clear")
    assert sdk.pubsub.retained("chat/room") == []


def test_subscriptions_are_listed(dashboard: Dashboard, sdk: nexo.Client) -> None:
    with sdk.pubsub.subscribe("listed/+/here"):
        page = dashboard.open("pubsub?tab=subscriptions")
        page.get_by_role("searchbox").fill("listed/")
        expect(page.locator("tbody tr")).to_have_count(1)


def test_topics_in_use_are_a_tree_that_folds(dashboard: Dashboard) -> None:
    page = dashboard.open("pubsub")
    rows = page.get_by_role("table", name="Topics").locator("tbody tr")
    expect(rows.filter(has_text="motion")).to_have_count(1)
    dashboard.press("Close home/hall")
    expect(rows.filter(has_text="motion")).to_have_count(0)
    dashboard.press("Open home/hall")
    busy = rows.filter(has_text="motion").locator("td").nth(1)
    expect(busy).not_to_have_text("0")
    dashboard.press("Watch home/hall/#")
    expect(page.get_by_role("log")).to_contain_text("home/hall/motion")


# -- queue ------------------------------------------------------------------------------


def test_a_queue_is_created_filled_paused_and_deleted(
    dashboard: Dashboard, sdk: nexo.Client
) -> None:
    page = dashboard.open("queue")
    dashboard.press("Create a queue")
    dashboard.answer("Create", queue="made/queue", visibility_timeout_ms="5s", max_retries="2")
    expect(page.locator("h1")).to_have_text("made/queue")
    queue = sdk.queue("made/queue")
    made = queue.info().options
    assert (made["visibility_timeout_ms"], made["max_retries"]) == (5_000, 2)
    dashboard.press("Push a job")
    dashboard.answer("Push", value='{"a": 1}', priority="9")
    assert queue.peek()[0].priority == 9
    dashboard.press("Pause")
    dashboard.answer("Pause")
    assert queue.info().paused
    dashboard.press("Resume")
    dashboard.answer("Resume")
    assert not queue.info().paused
    (job,) = queue.peek()
    dashboard.press(f"Show job {job.id}")
    expect(page.get_by_role("dialog").locator("pre")).to_contain_text('"a"')
    page.keyboard.press("Escape")
    dashboard.press("Find a job")
    page.get_by_role("dialog").locator("[name=id]").fill(job.id)
    page.get_by_role("dialog").get_by_role("button", name="Find", exact=True).click()
    expect(page.get_by_role("dialog", name=f"Job {job.id}")).to_contain_text("waits")
    page.keyboard.press("Escape")
    dashboard.press(f"Cancel {job.id}")
    dashboard.answer("Remove")
    assert queue.info().waiting == 0
    queue.push_many(["x", "y"])
    dashboard.press("Purge")
    dashboard.answer("Purge")
    assert queue.info().waiting == 0
    dashboard.press("Delete")
    dashboard.answer("Delete", typed="made/queue")
    assert not queue.exists()


def test_jobs_in_work_show_their_holder_and_lease(dashboard: Dashboard) -> None:
    page = dashboard.open("queue?name=payments/eu&tab=working")
    rows = page.get_by_role("table", name="Jobs in work").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("7 EUR")
    expect(rows.first).to_contain_text(re.compile(r"[5-9] m \d+ s"))
    rows.first.get_by_role("link", name="card-terminal-3").click()
    expect(page.locator("h1")).to_have_text("Connections")
    expect(page.locator("tbody tr").first).to_contain_text("card-terminal-3")


def test_a_celery_task_shows_its_name_arguments_and_worker(
    dashboard: Dashboard, sdk: nexo.Client
) -> None:
    """SPEC M1."""
    app = Celery(broker=str(sdk.address), fixups=[])
    app.send_task("shop.price", (3, 7), queue="shop")
    app.pool.force_close_all()
    page = dashboard.open("queue?name=shop&tab=waiting")
    expect(page.locator("tbody tr").first).to_contain_text("shop.price")
    (job,) = sdk.queue("shop").pop()
    dashboard.open("queue?name=shop&tab=working")
    page.get_by_role("button", name=f"Show job {job.id}").click()
    shown = page.get_by_role("dialog")
    for text in ("shop.price", "(3, 7)", "Delivered to"):
        expect(shown).to_contain_text(text)
    page.keyboard.press("Escape")
    job.ack()


def test_dead_letters_are_replayed_and_deleted(dashboard: Dashboard, sdk: nexo.Client) -> None:
    queue = sdk.queue("failing").create(max_retries=0)
    queue.push_many(["a", "b", "c", "d"])
    for job in queue.pop(4):
        job.nack(SCRIPT)
    page = dashboard.open("queue?name=failing&tab=dead")
    expect(page.locator("tbody tr").first).to_contain_text(SCRIPT)
    first, second = (letter.id for letter in queue.dlq.peek(2))
    dashboard.press(f"Replay {first}")
    dashboard.answer("Replay")
    assert queue.info().waiting == 1
    dashboard.press(f"Delete {second}")
    dashboard.answer("Delete")
    assert queue.dlq.count() == 2
    dashboard.press("Replay all")
    dashboard.answer("Replay")
    assert (queue.dlq.count(), queue.info().waiting) == (0, 3)
    for job in queue.pop(3):
        job.nack("again")
    expect(page.locator("tbody tr")).to_have_count(3)
    dashboard.press("Delete all")
    dashboard.answer("Delete")
    assert queue.dlq.count() == 0


def test_a_schedule_is_shown_with_its_time_zone(dashboard: Dashboard, sdk: nexo.Client) -> None:
    crons = sdk.queue("zones").create().cron
    crons.set("rome", "0 3 * * *", "x", timezone="Europe/Rome")
    crons.set("plain", "0 3 * * *", "x")
    page = dashboard.open("queue?name=zones&tab=cron")
    expect(page.locator("tbody tr", has_text="rome")).to_contain_text("Europe/Rome")
    expect(page.locator("tbody tr", has_text="plain")).to_contain_text("UTC")


def test_schedules_and_options_are_changed(dashboard: Dashboard, sdk: nexo.Client) -> None:
    queue = sdk.queue("cron").create()
    page = dashboard.open("queue?name=cron&tab=cron")
    dashboard.press("Set a schedule")
    dashboard.answer("Set", name="nightly", cron="0 3 * * *", value='"x"')
    assert [row.name for row in queue.cron.list()] == ["nightly"]
    dashboard.press("Delete schedule nightly")
    dashboard.answer("Delete")
    assert queue.cron.list() == []
    dashboard.open("queue?name=cron&tab=options")
    dashboard.press("Change")
    with page.expect_request("**/queue/update") as sent:
        dashboard.answer("Change", max_retries="3", backoff="fixed")
    changed = {"max_retries": 3, "backoff": "fixed"}
    assert sent.value.post_data_json == {"queue": "cron", "options": changed}
    assert queue.info().options["max_retries"] == 3
    expect(page.locator("table")).to_contain_text("max_retries")
    dashboard.press("Change")
    page.get_by_text("More options").click()
    dashboard.answer("Change", fair=True, result_ttl_ms="90m", rate="2.5")
    now = queue.info().options
    assert (now["fair"], now["result_ttl_ms"], now["rate"]) == (True, 5_400_000, 2.5)
    expect(page.locator("tr", has_text="result_ttl_ms")).to_contain_text("90m")


# -- stream -----------------------------------------------------------------------------


def test_a_stream_is_created_written_and_deleted(dashboard: Dashboard, sdk: nexo.Client) -> None:
    page = dashboard.open("stream")
    dashboard.press("Create a stream")
    dashboard.answer("Create", stream="made/stream", partitions="2", cleanup="compact")
    expect(page.locator("h1")).to_have_text("made/stream")
    stream = sdk.stream("made/stream")
    dashboard.press("Publish")
    dashboard.answer("Publish", value='{"html": "<i>"}', key="k", headers='{"h": 1}')
    record = stream.get("k")
    assert record is not None
    assert (record.value, record.headers) == ({"html": "<i>"}, {"h": 1})
    page.get_by_label("Partition").select_option(str(record.partition))
    dashboard.press("Show record 0")
    expect(page.get_by_role("dialog")).to_contain_text('"<i>"')
    page.keyboard.press("Escape")
    dashboard.press("Compact")
    dashboard.answer("Compact")
    dashboard.open("stream?name=made/stream&tab=options")
    dashboard.press("Change")
    expect(page.get_by_label("Partitions")).to_have_count(1)  # SPEC E1: they may be added
    dashboard.answer("Change", retention_ms="1000s", retention_bytes="2GiB")
    now = stream.info().options
    assert (now["retention_ms"], now["retention_bytes"]) == (1_000_000, 2 * 1024**3)
    dashboard.press("Delete")
    dashboard.answer("Delete", typed="made/stream")
    assert not stream.exists()


def test_a_wrong_option_is_told_at_its_field(dashboard: Dashboard, sdk: nexo.Client) -> None:
    page = dashboard.open("stream")
    dashboard.press("Create a stream")
    dialog = page.get_by_role("dialog")
    age = dialog.get_by_label("Age limit")
    create = dialog.get_by_role("button", name="Create", exact=True)
    expect(age).to_have_value("7d")
    dialog.get_by_label("Name").fill("made/wrong")
    age.fill("a week")
    create.click()
    expect(age).to_be_focused()
    expect(age).to_have_attribute("aria-invalid", "true")
    assert "such as 500ms, 30s or 7d" in age.evaluate(
        "e => document.getElementById(e.getAttribute('aria-describedby').split(' ')[0]).textContent"
    )
    age.fill("7d")
    dialog.get_by_label("Name").fill("../wrong")
    create.click()
    expect(dialog.get_by_label("Name")).to_be_focused()
    expect(age).not_to_have_attribute("aria-invalid", "true")
    assert not sdk.stream("made/wrong").exists()
    page.get_by_text("More options").click()
    dialog.get_by_label("Largest value").fill("many")
    page.get_by_text("More options").click()
    dialog.get_by_label("Name").fill("made/wrong")
    create.click()
    expect(dialog.get_by_label("Largest value")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert not sdk.stream("made/wrong").exists()


def test_records_are_browsed_by_offset_and_time(dashboard: Dashboard, sdk: nexo.Client) -> None:
    stream = sdk.stream("browsed").create()
    stream.publish_many([f"record {n}" for n in range(130)])
    page = dashboard.open("stream?name=browsed")
    expect(page.locator("tbody tr").last).to_contain_text("record 129")
    dashboard.press("Earlier")
    expect(page.locator("tbody tr").first).to_contain_text("record 30")
    dashboard.press("Oldest")
    expect(page.locator("tbody tr").first).to_contain_text("record 0")
    dashboard.press("Later")
    expect(page.locator("tbody tr").first).to_contain_text("record 50")
    offset = page.get_by_label("Go to offset")
    offset.fill("77")
    offset.press("Enter")
    expect(page.locator("tbody tr").first).to_contain_text("record 77")
    assert "offset=77" in page.url
    page.get_by_label("Go to time").fill("2020-01-01T00:00:00")
    page.get_by_label("Go to time").blur()
    expect(page.locator("tbody tr").first).to_contain_text("record 0")


def test_all_partitions_are_one_list_in_the_order_of_time(
    dashboard: Dashboard, sdk: nexo.Client
) -> None:
    """U7: the page showed partition 0 only."""
    stream = sdk.stream("spread").create(partitions=3)
    for n in range(130):
        stream.publish(f"record {n}", key=f"k{n % 10}")
    records = [record for partition in range(3) for record in stream.read(partition)]
    records.sort(key=lambda record: (record.timestamp_ms, record.partition, record.offset))
    page = dashboard.open("stream?name=spread")
    rows = page.get_by_role("table", name="Records").locator("tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.last).to_contain_text(records[129].value)
    expect(rows.first).to_contain_text(records[80].value)
    dashboard.press("Earlier")
    expect(rows.first).to_contain_text(records[30].value)
    dashboard.press("Oldest")
    expect(rows.first).to_contain_text(records[0].value)
    dashboard.press("Later")
    expect(rows.first).to_contain_text(records[50].value)
    page.get_by_role("searchbox", name="Key").fill("k7")
    expect(rows).to_have_count(13)
    expect(rows.first).to_contain_text("record 7")
    assert "key=k7" in page.url
    page.get_by_role("searchbox", name="Key").fill("nobody")
    expect(page.locator("#main .empty")).to_contain_text("No record")


def test_the_path_of_one_record_is_shown(dashboard: Dashboard, busy: Process) -> None:
    with nexo.connect(busy.url, client="till-7") as sdk:
        stream = sdk.stream("traced").create()
        stream.publish({"total": 12}, key="ada", headers={"trace": "7f"})
        stream.publish("second")
        with stream.consume("billing", batch=1) as consumer:
            next(consumer).ack()
            with stream.consume("shipping", batch=1) as holder:
                next(holder)
                page = dashboard.open("stream?name=traced&offset=0")
                for size in (DESKTOP, PHONE):
                    page.set_viewport_size(size)  # type: ignore[arg-type]
                    page.get_by_role("button", name="Show record 0").click()
                    dialog = page.get_by_role("dialog")
                    expect(dialog).to_contain_text("ada")
                    rows = dialog.get_by_role("table", name="Groups of this record")
                    expect(rows.locator("tbody tr")).to_have_count(2)
                    expect(rows).to_contain_text("finished")
                    held = rows.locator("tr", has_text="shipping")
                    expect(held).to_contain_text("delivered, not acked yet")
                    assert dialog.evaluate("e => e.scrollWidth <= e.clientWidth")
                    if size is DESKTOP:
                        expect(held).to_contain_text("till-7")
                        assert problems_of(page) == []
                    page.keyboard.press("Escape")


def test_groups_are_sought_and_parked_records_settled(
    dashboard: Dashboard, sdk: nexo.Client
) -> None:
    stream = sdk.stream("grouped").create()
    stream.publish_many([f"r{n}" for n in range(10)])
    with stream.consume("g", max_deliveries=1, wait=0.2) as consumer:
        for _, record in zip(range(10), consumer, strict=False):
            if record.offset < 3:
                record.nack(reason=SCRIPT)
            else:
                record.ack()
    page = dashboard.open("stream?name=grouped&tab=groups")
    expect(page.get_by_role("table", name="Parked records")).to_contain_text(SCRIPT)
    dashboard.press("Show record 0")
    trail = page.get_by_role("table", name="Groups of this record")
    expect(trail.locator("tbody tr")).to_contain_text("parked")
    page.keyboard.press("Escape")
    dashboard.press("Delete record 0")
    dashboard.answer("Delete")
    assert stream.group("g").info().partitions[0].parked == 2
    dashboard.press("Replay record 1")
    dashboard.answer("Replay")
    assert stream.group("g").lag() == 1
    dashboard.press("Delete all")
    dashboard.answer("Delete")
    wait_until(lambda: stream.group("g").info().partitions[0].parked == 0)
    dashboard.press("Seek g")
    dashboard.answer("Seek", to="offset", offset="4")
    assert stream.group("g").lag() == 6
    dashboard.press("Seek g")
    dashboard.answer("Seek", to="end")
    assert stream.group("g").lag() == 0
    dashboard.press("Delete group g")
    dashboard.answer("Delete")
    assert stream.groups() == []


# -- pipeline ---------------------------------------------------------------------------


def test_the_pipeline_shows_freshness_errors_and_runs(dashboard: Dashboard) -> None:
    page = dashboard.open("pipeline")
    streams = page.get_by_role("table", name="Streams").locator("tbody tr")
    expect(streams.filter(has_text="orders")).to_contain_text("failing")
    expect(streams.filter(has_text="clicks")).to_contain_text("complete")
    expect(page.get_by_role("alert")).to_contain_text("no space left on device")
    streams.filter(has_text="orders").get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("orders")
    runs = page.get_by_role("table", name="Snapshots").locator("tbody tr")
    expect(runs).to_have_count(3)
    expect(runs.first).to_contain_text("75")


def test_the_pipeline_shows_a_stream_s_contract_and_dead_letters(dashboard: Dashboard) -> None:
    """SPEC I11."""
    page = dashboard.open("pipeline?name=orders")
    contract = page.get_by_role("region", name="Contract")
    expect(contract).to_contain_text("is null alone")
    expect(contract.locator("tbody tr")).to_have_count(3)
    expect(contract.locator("tbody")).to_contain_text("list<struct<sku: string>>")
    expect(contract.locator("tbody")).to_contain_text("decimal(10, 2)")
    page = dashboard.open("pipeline?name=clicks")
    letters = page.get_by_role("table", name="Dead letters").locator("tbody tr")
    expect(letters).to_have_count(2)
    expect(letters.filter(has_text="$.n")).to_have_count(1)
    expect(page.get_by_role("region", name="Contract")).to_contain_text("makes a dead letter")


# -- the rest ---------------------------------------------------------------------------


def test_connections_are_found_by_name(dashboard: Dashboard) -> None:
    page = dashboard.open("connections")
    page.get_by_role("searchbox").fill("traffic")
    expect(page.locator("tbody tr").first).to_contain_text("traffic")
    page.get_by_role("button", name="Queue", exact=True).click()
    expect(page).to_have_url(re.compile("broker=queue"))
    page.get_by_role("table", name="Applications").get_by_role("link", name="traffic").first.click()
    expect(page.get_by_role("table", name="Connections").locator("tbody tr")).not_to_have_count(0)


def test_alerts_lead_to_what_they_are_about(dashboard: Dashboard) -> None:
    page = dashboard.open("overview")
    for fold in page.locator("details.fold:not([open]) > summary").all():
        fold.click()
    page.locator(".alerts li", has_text="dead letters to replay").get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("emails")
    expect(page.locator("#main")).to_contain_text("Dead letters")


# -- dialogs ----------------------------------------------------------------------------


def test_a_dialog_ends_with_its_page_and_gives_the_focus_back(dashboard: Dashboard) -> None:
    """U7: an open dialog stayed over the next page and kept the focus."""
    page = dashboard.open("queue")
    page.get_by_role("link", name="emails").click()
    dashboard.press("Push a job")
    page.go_back()
    expect(page.locator("h1")).to_have_text("Queues")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_dialog_that_comes_late_does_not_open_on_the_next_page(dashboard: Dashboard) -> None:
    page = dashboard.open("queue")
    page.route("**/queue/options*", lambda route: _later(page, route))
    dashboard.press("Create a queue")
    expect(page.locator("h1")).to_have_text("Streams")
    expect(page.locator("#main .panel").first).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def _later(page: Page, route: Route) -> None:
    """Answer once the user is on another page."""
    page.evaluate("location.hash = '#/stream'")
    route.continue_()


def test_an_empty_form_says_what_is_missing_at_its_field(
    dashboard: Dashboard, sdk: nexo.Client
) -> None:
    """U7: Push with an empty form answered in the words of the API."""
    sdk.queue("untouched").create()
    page = dashboard.open("queue?name=untouched")
    dashboard.press("Push a job")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Push", exact=True).click()
    expect(dialog.get_by_role("alert").first).to_have_text(
        'Write a value such as {"hello": "world"}, or choose Text'
    )
    expect(dialog.locator("[name=value]")).to_be_focused()
    dialog.locator("[name=value]").fill("hello")
    dialog.get_by_role("button", name="Push", exact=True).click()
    expect(dialog.get_by_role("alert").first).to_contain_text("This is not JSON")
    dashboard.answer("Push", value__type="text")
    assert sdk.queue("untouched").peek()[0].value == "hello"
