"""The example of models in FastAPI: they come back from every broker (finding U1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

import nexo
from examples.fastapi_models import Cancelled, Event, Order, app

CARD = {"id": 1, "lines": [{"item": "tea"}], "payment": {"kind": "card", "lastFour": "4242"}}
INVOICE = {
    "id": 2,
    "lines": [{"item": "tea", "count": 2}, {"item": "cup"}],
    "payment": {"kind": "invoice", "days": 14, "to": {"streetName": "Main"}},
    "shipTo": {"streetName": "Side", "city": "Ulm"},
    "notes": {"floor": 3, "door": "left"},
}
ORDERS = pytest.mark.parametrize("order", [CARD, INVOICE], ids=["card", "invoice"])


@pytest.fixture
def browser(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv("NEXO_URL", url)
    with TestClient(app) as browser:
        yield browser


def as_shown(order: dict[str, Any]) -> Any:
    """With defaults filled in."""
    return Order.model_validate(order).model_dump(mode="json", by_alias=True)


@ORDERS
def test_an_order_comes_back_from_every_broker(
    browser: TestClient, url: str, order: dict[str, Any]
) -> None:
    event, shown = {"about": order}, as_shown(order)
    assert browser.put("/orders/7", json=order).status_code == 200
    assert browser.get("/orders/7").json() == shown
    assert browser.post("/jobs", json=order).status_code == 200
    assert browser.post("/jobs/next").json() == shown
    assert browser.post("/events", json=event).json() == {"partition": 0, "offset": 0}
    assert browser.get("/events").json() == [{"about": shown}]
    assert browser.post("/news/orders", json=event).status_code == 200
    assert browser.get("/news/orders").json() == {"about": shown}
    with nexo.connect(url) as client:  # what a program without the models sees
        assert client.store.get("order/7") == shown


def test_a_union_comes_back_as_what_it_was(browser: TestClient, url: str) -> None:
    for about in (CARD, {"id": 1, "reason": "late"}, {"id": 1, "reason": None}):
        browser.post("/events", json={"about": about})
    with nexo.connect(url) as client:
        found = [record.value.about for record in client.stream("events", Event).read()]
    assert [type(about) for about in found] == [Order, Cancelled, Cancelled]


def test_what_fits_no_model_is_refused_before_any_broker(browser: TestClient) -> None:
    wrong = {**CARD, "payment": {"kind": "cash"}}
    assert browser.post("/jobs", json=wrong).status_code == 422
    assert browser.post("/jobs/next").json() is None
