# Generated from _async/topic.py by tools/unasync.py; edit that file instead.
"""A topic to write to and to look up keys in (SPEC G2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Generic, Never

from nexo.client._sync import runtime
from nexo.client._sync.client import Client
from nexo.client._sync.handling import Closing
from nexo.client.checks import not_keywords, text
from nexo.client.stream_records import Headers, Key, needed_key
from nexo.errors import AlreadyExists, NotFound
from nexo.options.units import Duration
from nexo.protocol.values import check_type
from nexo.topics._sync.nexo_backend import backend_for
from nexo.topics._sync.producer.producer import Sender, traced
from nexo.topics.model import (
    ProducerRecord,
    RecordMetadata,
    SenderOptions,
    T,
    TopicDescription,
)
from nexo.topics.packing import partitioner_named
from nexo.topics.settings import at_least_one, stream_options, topic_config, topic_options


class Topic(Closing, Generic[T]):
    """One topic, created on first use if it does not exist.

    Options that are given must be those of an existing topic, or `AlreadyExists` is raised;
    a new topic gets 1 partition and keeps its messages for 7 days unless they say otherwise.
    ``retention`` is how long messages are kept, such as ``'7d'``; values are of ``type_``.
    """

    def __init__(
        self,
        name: str,
        *misplaced: Never,
        partitions: int | None = None,
        retention: Duration | None = None,
        compaction: bool | None = None,
        min_cleanable_dirty_ratio: float | None = None,
        server: Client | str | None = None,
        type_: type[T] | None = None,
    ) -> None:
        if misplaced:
            raise not_keywords(misplaced, "Topic(name, partitions=8)")
        self.name = text(name, "a topic's name")
        self._type = type_
        self._partitions = None if partitions is None else at_least_one("partitions", partitions)
        self._config = topic_options(retention, compaction, min_cleanable_dirty_ratio)
        self._backend = backend_for(server)
        self._sender: Sender | None = None
        self._lock = runtime.Mutex()
        self._ready = False

    def create(self) -> TopicDescription:
        """Create it unless it exists as requested; the other methods do so automatically."""
        try:
            found = self._backend.describe_topic(self.name)
        except NotFound:
            with suppress(AlreadyExists):  # someone else was faster
                self._backend.create_topic(self.name, self._partitions or 1, 1, self._config)
            found = self._backend.describe_topic(self.name)
        self._check(found)
        self._ready = True
        return found

    def _check(self, found: TopicDescription) -> None:
        if self._partitions not in (None, len(found.partitions)):
            raise AlreadyExists(
                f"topic {self.name!r} has {len(found.partitions)} partitions, not "
                f"{self._partitions}"
            )
        wanted = topic_config(stream_options(self._config))
        for key, value in wanted.items():
            if found.config.get(key, value) != value:
                raise AlreadyExists(
                    f"topic {self.name!r} has {key} = {found.config[key]!r}, not {value!r}"
                )

    def _ensure(self) -> Sender:
        with self._lock:
            if not self._ready:
                self.create()
            if self._sender is None:
                options = SenderOptions(linger_ms=0)
                sender = self._backend.sender(options, partitioner_named("murmur2"))
                self._sender = traced(sender)
            return self._sender

    # -- writing

    def produce(
        self,
        value: T | ProducerRecord | None,
        *,
        key: Key = None,
        headers: Headers = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Write a message; its key decides the partition. A value of None deletes the key."""
        record = ProducerRecord.made(value, key, headers, partition)
        if record.value is not None:
            check_type(self._type, record.value)
        sender = self._ensure()
        return sender.send(self.name, record).result()

    def produce_batch(
        self, records: Iterable[ProducerRecord | Mapping[str, Any]]
    ) -> list[RecordMetadata]:
        """Write messages, all or none: ``[{'key': 'a', 'value': 1}, …]``."""
        chosen = ProducerRecord.several(records)
        sender = self._ensure()
        return sender.send_together(self.name, chosen)

    # -- looking things up

    def get(self, key: str | bytes) -> T | None:
        """The newest value of a key; None if there is none or it was deleted."""
        wanted = needed_key(key)
        self._ensure()
        found = self._backend.newest(self.name, wanted, self._type)
        return next((message.value for message in found.values()), None)

    def read_current_state(self) -> dict[str | bytes, T]:
        """The newest value of every key that was not deleted."""
        self._ensure()
        found = self._backend.newest(self.name, None, self._type)
        return {key: message.value for key, message in found.items()}

    def describe(self) -> TopicDescription:
        """Configuration, and per partition the earliest and the next offset."""
        return self.create()

    def close(self) -> None:
        """End the connection, unless it belongs to a client."""
        if self._sender is not None:
            self._sender.close()
        self._backend.close()
