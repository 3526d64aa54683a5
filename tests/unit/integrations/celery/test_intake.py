"""Queues that live with their consumer (SPEC M1)."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

pytest.importorskip("kombu")

from nexo.integrations.celery.intake import MAILBOX_MESSAGES, Mailbox

tags = count(1)


def message(body: str, **properties: Any) -> dict[str, Any]:
    return {"body": body, "properties": {"delivery_tag": next(tags), **properties}}


def take_all(mailbox: Mailbox) -> list[str]:
    found: list[str] = []
    while (taken := mailbox.take()) is not None:
        found.append(taken["body"])
    return found


def test_the_best_priority_is_first_and_the_oldest_of_it() -> None:
    mailbox = Mailbox()
    for body, priority in (("first", 2), ("second", 6), ("third", 2), ("plain", None)):
        mailbox.put(message(body, priority=priority))
    assert take_all(mailbox) == ["second", "first", "third", "plain"]


def test_a_message_waits_no_longer_than_it_says_or_the_queue_allows() -> None:
    now_s = [100.0]
    mailbox = Mailbox(ttl_ms=5_000, clock=lambda: now_s[0])
    for body, expiration in (("short", "1000"), ("long", "9000"), ("plain", None)):
        mailbox.put(message(body, expiration=expiration))
    now_s[0] += 1.0
    assert len(mailbox) == 2
    seen: list[str] = []
    now_s[0] += 3.9
    mailbox.attach(lambda each: seen.append(each["body"]))
    assert seen == ["long", "plain"]
    mailbox.attach(None)
    mailbox.put(message("late"))
    now_s[0] += 5.0
    assert mailbox.take() is None


def test_a_full_mailbox_drops_the_oldest() -> None:
    mailbox = Mailbox()
    mailbox.put(message("best", priority=9))
    for n in range(MAILBOX_MESSAGES):
        mailbox.put(message(str(n)))
    assert len(mailbox) == MAILBOX_MESSAGES
    assert take_all(mailbox)[0] == "0"
