"""Which alerts a web hook is told of, and when it is told again."""

from __future__ import annotations

import json
from typing import Any

from nexo.admin.watching.alerts import Alert
from nexo.admin.watching.webhook import ReportedAlerts, Webhook

DEAD = Alert("warning", "dead-letters", "queue", "mail", "1 dead letter")
DOWN = Alert("critical", "down", "store", "", "the broker does not answer")


class Hook:
    """The other side; ``well`` is whether it answers."""

    def __init__(self) -> None:
        self.well = True
        self.calls: list[dict[str, Any]] = []

    def send(self, body: bytes) -> None:
        if not self.well:
            raise ConnectionRefusedError("nobody listens")
        self.calls.append(json.loads(body))


def kinds(rows: list[dict[str, Any]]) -> list[str]:
    return [row["kind"] for row in rows]


async def test_alerts_are_told_once_when_they_come_and_once_when_they_go() -> None:
    hook, now = Hook(), [DEAD]
    webhook = Webhook("", "http://here", lambda: now, hook.send)
    for _ in range(3):
        await webhook.look()
    now = [DOWN]
    await webhook.look()
    now = []
    await webhook.look()
    await webhook.look()
    told = [(kinds(call["raised"]), kinds(call["resolved"])) for call in hook.calls]
    assert told == [(["dead-letters"], []), (["down"], ["dead-letters"]), ([], ["down"])]
    assert (hook.calls[0]["server"], hook.calls[0]["standing"]) == ("http://here", 1)


async def test_a_hook_that_failed_is_told_what_is_true_by_then() -> None:
    hook, now = Hook(), [DEAD, DOWN]
    hook.well = False
    webhook = Webhook("", "", lambda: now, hook.send)
    await webhook.look()
    assert webhook.failures == 1
    now, hook.well = [DOWN], True
    await webhook.look()
    assert [kinds(call["raised"]) for call in hook.calls] == [["down"]]
    assert hook.calls[0]["resolved"] == []
    assert webhook.failures == 0


def test_an_alert_that_is_now_one_of_many_is_not_over() -> None:
    told = ReportedAlerts()
    told.accepted([DEAD])
    many = Alert("warning", "dead-letters", "queue", "", "7 queues have dead letters", count=7)
    assert told.news([many]) == ([many], [])
