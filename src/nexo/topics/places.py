"""How users name partitions, offsets and times; checked before anything moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from nexo.client.checks import text, whole
from nexo.errors import InvalidInput
from nexo.topics.model import Position, TopicPartition

Partition: TypeAlias = TopicPartition | int
"""A number alone is a partition of the one topic that the consumer reads."""

_MAX = 2**63 - 1


def lane_of(partition: Any, topic: Any, topics: Sequence[str]) -> TopicPartition:
    """One partition; ``topic`` may be left out where ``topics`` has one."""
    if topic is None:
        if len(topics) != 1:
            raise InvalidInput(f"name the topic: the consumer reads {', '.join(topics)}")
        topic = topics[0]
    return TopicPartition(text(topic, "the topic"), whole(partition, "the partition", 0, _MAX))


def lanes_of(partitions: Iterable[Any], topics: Sequence[str]) -> list[TopicPartition]:
    """Partitions, each a `TopicPartition` or a number."""
    return [
        lane_of(each[1], each[0], topics)
        if isinstance(each, tuple) and len(each) == 2
        else lane_of(each, None, topics)
        for each in partitions
    ]


def position_in(given: Mapping[str, Any], topics: Sequence[str]) -> Position:
    """Of ``{'partition': 0, 'offset': 1000}``, with ``'topic'`` where there are several."""
    if not {"partition", "offset"} <= given.keys() <= {"topic", "partition", "offset"}:
        raise InvalidInput(
            f"a place is {{'topic': …, 'partition': …, 'offset': …}}, not {dict(given)!r}"
        )
    at = lane_of(given["partition"], given.get("topic"), topics)
    return Position(*at, checked_offset(given["offset"]))


def checked_offset(offset: Any) -> int:
    """An offset from 0 on."""
    return whole(offset, "the offset", 0, _MAX)


def time_ms(time: Any) -> int:
    """A point in time, in milliseconds."""
    if isinstance(time, datetime):
        return max(0, int(time.timestamp() * 1000))
    return whole(time, "the time, in milliseconds,", 0, _MAX)
