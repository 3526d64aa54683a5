"""Makes idempotent producers of librdkafka look at their topics twice when they start.

From 2.10 on such a producer asks for its producer id when it is told of topics. The first time it
has just dropped the connection on which it was told, finds no other one that is open, and waits
for 500 ms. So it does with Kafka too, unless the topic is a new one: then it has to ask again, on
its lasting connection. Here its first question is always answered as if the topic had no leader
yet, which passes: it asks again as soon as it has connected, some 50 ms later.

A producer that is not idempotent would only lose these 50 ms. So it is known by its first batch,
and spared from its second start on, unless an idempotent one is called the same.
"""

from __future__ import annotations

import re
from typing import TypeAlias, TypeVar

from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error

_T = TypeVar("_T")
_Client: TypeAlias = tuple[str, str]

AGAIN_MS = 1_000
"""A client asks again within this time; later it is another one."""
MOST = 1_000
"""Clients that are remembered."""

_VERSION = re.compile(r"(?:^|rdkafka-)v?(\d{1,4})\.(\d{1,4})\.")
_WAITS_SINCE = (2, 10)


def waits_for_its_id(name: str, version: str) -> bool:
    """Whether a client that calls itself this is a librdkafka that would wait."""
    found = _VERSION.search(version) if "rdkafka" in name + version else None
    return found is not None and (int(found[1]), int(found[2])) >= _WAITS_SINCE


class SecondLooks:
    """What is known of starting producers, by their address and client id.

    Two that are called the same and start at once may be taken for each other: then one of them
    waits as if this did not exist.
    """

    def __init__(self) -> None:
        self._until_ms: dict[_Client, int] = {}
        """Those that are awaited on their second connection, oldest first."""
        self._idempotent: dict[_Client, bool] = {}
        """Whether one that is called this has ever been idempotent; oldest first."""

    def is_due(self, address: str, client_id: str, now_ms: int) -> bool:
        """Whether what is asked first on a connection is a client's first question at all.

        If so, its second connection is awaited.
        """
        key = address, client_id
        if not self._idempotent.get(key, True) or self._until_ms.pop(key, 0) > now_ms:
            return False
        _remember(self._until_ms, key, now_ms + AGAIN_MS)
        return True

    def produced(self, address: str, client_id: str, producer_id: int) -> None:
        """Learn from a batch whether its client is idempotent; its start is over."""
        key = address, client_id
        self._until_ms.pop(key, None)
        ever = self._idempotent.get(key, False) or producer_id >= 0
        _remember(self._idempotent, key, ever)


def without_leader(row: KafkaMessage) -> KafkaMessage:
    """What is said of a topic at first; an error stays what it is."""
    if row.get("error", Error.NONE) != Error.NONE:
        return row
    return {"error": Error.LEADER_NOT_AVAILABLE, "name": row["name"], "id": row["id"]}


def _remember(known: dict[_Client, _T], key: _Client, value: _T) -> None:
    known.pop(key, None)
    if len(known) >= MOST:
        del known[next(iter(known))]
    known[key] = value
