"""The page that asks SQL: run, look, chart, plan, errors, cancel, history (SPEC K3)."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.checks import problems_of
from tests.browser.conftest import Dashboard

pytestmark = pytest.mark.browser


def ask(page: Page, query: str) -> None:
    page.get_by_label("Question in SQL").fill(query)
    page.get_by_role("button", name="Run", exact=True).click()


def test_a_question_is_answered_as_a_table_and_as_a_chart(dashboard: Dashboard) -> None:
    page = dashboard.open("sql")
    ask(page, "select topic, count(*) as n from stream_messages group by topic order by topic")
    answer = page.get_by_role("table", name="Answer")
    expect(answer.get_by_role("columnheader")).to_have_text(["topic", "n"])
    expect(answer.get_by_role("cell", name="orders", exact=True)).to_be_visible()
    assert problems_of(page) == []
    page.get_by_role("button", name="Chart").click()
    expect(page.get_by_role("img", name="n: ")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as CSV").click()
    assert download.value.path().read_text().startswith("topic,n")
    ask(page, "select partition, count(*) as n from orders group by all order by all")
    expect(page.get_by_role("img", name="n: 3 bars")).to_be_visible()  # not that of partition
    dashboard.shot("sql-answer")


def test_views_say_their_columns_and_write_the_question(dashboard: Dashboard) -> None:
    page = dashboard.open("sql")
    views = page.get_by_role("list", name="Views")
    views.get_by_role("button", name="orders", exact=True).click()
    expect(views.get_by_text("partition")).to_be_visible()
    views.get_by_role("button", name="Ask about orders", exact=True).click()
    expect(page.get_by_label("Question in SQL")).to_have_value("select *\nfrom orders\nlimit 100")


def test_a_plan_is_shown_and_a_mistake_is_explained(dashboard: Dashboard) -> None:
    page = dashboard.open("sql")
    page.get_by_label("Question in SQL").fill("select count(*) from orders")
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_label("Plan", exact=True).last).to_contain_text("SCAN")
    ask(page, "selec 1")
    expect(page.get_by_role("alert").filter(has_text="syntax error")).to_be_visible()


def test_a_question_is_cancelled_and_remembered_when_it_was_answered(dashboard: Dashboard) -> None:
    page = dashboard.open("sql")
    ask(page, "select count(*) from range(100000000000) a, range(100) b")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alert").filter(has_text="was cancelled")).to_be_visible()
    ask(page, "select 41 + 1 as answer")
    expect(page.get_by_role("cell", name="42", exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_label("Question in SQL")).to_have_value("select 41 + 1 as answer")
    past = page.get_by_role("list", name="Asked before")
    expect(past.get_by_role("button")).to_have_text(["select 41 + 1 as answer"])
