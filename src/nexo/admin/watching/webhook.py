"""Sends alerts to a web hook: those raised and those resolved since the last call.

The call is a POST of JSON, `Notice`. It succeeds with a 2xx status; until then it is
repeated with growing pauses, each time with the newest alerts.
"""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

import msgspec

from nexo.admin.watching.alerts import Alert
from nexo.version import __version__

log = logging.getLogger("nexo.admin")

AlertKey: TypeAlias = tuple[str, str, str, str]
SendNotice: TypeAlias = Callable[[bytes], None]

EVERY_S = 2.0
LONGEST_S = 300.0
TIMEOUT_S = 10.0


class Notice(msgspec.Struct):
    """The message that a web hook gets."""

    server: str
    """The address of the dashboard."""
    version: str
    at_ms: int
    raised: list[Alert]
    resolved: list[Alert]
    standing: int
    """The number of present alerts."""


class ReportedAlerts:
    """The alerts that the receiver knows of; no I/O."""

    def __init__(self) -> None:
        self._known: dict[AlertKey, Alert] = {}

    def news(self, now: Iterable[Alert]) -> tuple[list[Alert], list[Alert]]:
        """Alerts raised and resolved, compared with what was reported."""
        current = {_key(alert): alert for alert in now}
        raised = [alert for key, alert in current.items() if key not in self._known]
        # An alert that is now one of many in a line of its kind is not over.
        kinds = {(alert.kind, alert.broker) for alert in current.values() if alert.count > 1}
        resolved = [
            alert
            for key, alert in self._known.items()
            if key not in current and (alert.kind, alert.broker) not in kinds
        ]
        return raised, resolved

    def accepted(self, now: Iterable[Alert]) -> None:
        """The receiver has accepted these."""
        self._known = {_key(alert): alert for alert in now}


def _key(alert: Alert) -> AlertKey:
    return alert.kind, alert.broker, alert.subject, alert.group


class Webhook:
    """Reports alerts to a web hook while its task runs."""

    def __init__(
        self,
        url: str,
        server: str,
        alerts: Callable[[], list[Alert]],
        send: SendNotice | None = None,
    ) -> None:
        self._server = server
        self._alerts = alerts
        self._send = send or partial(_post, url)
        self._reported = ReportedAlerts()
        self.failures = 0
        """Calls in a row that failed."""

    async def run(self) -> None:
        """Look for news until cancelled."""
        while True:
            await asyncio.sleep(min(LONGEST_S, EVERY_S * 2**self.failures))
            await self.look()

    async def look(self) -> None:
        """Send what is new, if anything is."""
        now = self._alerts()
        raised, resolved = self._reported.news(now)
        if not raised and not resolved:
            self._reported.accepted(now)
            return
        standing, at_ms = sum(alert.count for alert in now), int(time.time() * 1_000)
        notice = Notice(self._server, __version__, at_ms, raised, resolved, standing)
        try:
            await asyncio.to_thread(self._send, msgspec.json.encode(notice))
        except (OSError, ValueError) as error:
            if not self.failures:
                log.warning("the alert web hook does not answer, trying again: %s", error)
            self.failures = min(self.failures + 1, 16)
            return
        self.failures = 0
        self._reported.accepted(now)


def _post(url: str, body: bytes) -> None:
    headers = {"content-type": "application/json", "user-agent": f"nexo/{__version__}"}
    request = urllib.request.Request(url, body, headers)
    urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
