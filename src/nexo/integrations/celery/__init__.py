"""Celery and kombu on Nexo: ``broker_url`` and ``result_backend`` may be ``nexo://…`` (SPEC M1).

kombu finds transports in a table of names, which importing this package extends. It need not be
imported by hand: kombu loads `SERIALIZER` through its entry points, and Celery the result
backend through its own.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES.setdefault("nexo", "nexo.integrations.celery.transport:Transport")
TRANSPORT_ALIASES.setdefault("nexos", "nexo.integrations.celery.transport:TLSTransport")


def _dump(value: Any) -> bytes:
    from nexo.protocol.values import json_bytes  # noqa: PLC0415 - loaded with every kombu

    return json_bytes(value)


def _load(content: bytes) -> Any:
    import msgspec  # noqa: PLC0415 - loaded with every kombu

    return msgspec.json.decode(content)


SERIALIZER = (_dump, _load, "application/x-nexo+json", "utf-8")
"""The serializer ``nexo``: JSON that also takes dataclasses, sets and enumerations."""
