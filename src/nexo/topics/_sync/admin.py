# Generated from _async/admin.py by tools/unasync.py; edit that file instead.
"""Administration of topics: create, grow, list, describe, delete, compact (SPEC G1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nexo.client._sync.client import Client
from nexo.client._sync.handling import Closing
from nexo.topics._sync.nexo_backend import backend_for
from nexo.topics.model import GroupDescription, TopicDescription
from nexo.topics.settings import at_least_one, stream_options


class AdminClient(Closing):
    """Administration of a cluster's topics.

    ``server`` is a client or a URL, ``nexo://…`` or ``kafka://…``; it defaults to ``NEXO_URL``,
    then to a local server. The same holds for every class of this package.
    """

    def __init__(self, server: Client | str | None = None) -> None:
        self._backend = backend_for(server)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, Any] | None = None,
    ) -> TopicDescription:
        """Create a topic; `AlreadyExists` if there is one of that name.

        ``config`` takes ``retention.ms``, ``retention.bytes`` (-1: no limit), ``cleanup.policy``
        (``delete``, ``compact`` or ``delete,compact``), ``max.message.bytes``,
        ``min.cleanable.dirty.ratio``, ``delete.retention.ms``; on Nexo also
        ``nexo.persistence`` and ``nexo.tiering``.
        """
        config = {} if config is None else config
        stream_options(config)
        count = at_least_one("partitions", partitions)
        copies = at_least_one("replication_factor", replication_factor)
        self._backend.create_topic(name, count, copies, config)
        return self._backend.describe_topic(name)

    def create_partitions(self, name: str, partitions: int) -> TopicDescription:
        """Give a topic more partitions, so that it has ``partitions`` in all.

        They are never removed: `InvalidOption` unless there are fewer now. Messages stay where they
        are, while keys may belong to another partition from then on.
        """
        count = at_least_one("partitions", partitions)
        self._backend.create_partitions(name, count)
        return self._backend.describe_topic(name)

    def list_topics(self) -> list[str]:
        """The names of all topics."""
        return self._backend.list_topics()

    def describe_topic(self, name: str) -> TopicDescription:
        """Configuration, and per partition the earliest and the next offset."""
        return self._backend.describe_topic(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its messages, and what groups have committed for it."""
        self._backend.delete_topic(name)

    def compact_topic(self, name: str) -> int:
        """Keep only the newest message per key, now; returns the bytes freed.

        `InvalidOption` unless its ``cleanup.policy`` includes ``compact``.
        """
        return self._backend.compact_topic(name)

    def describe_group(self, group_id: str) -> GroupDescription:
        """Members, owners of partitions, committed offsets, and the lag."""
        return self._backend.describe_group(group_id)

    def close(self) -> None:
        """End the connection, unless it belongs to a client."""
        self._backend.close()
