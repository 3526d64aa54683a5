"""How users name partitions, offsets, times and commits; checked before anything moves."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from nexo.client.checks import text, whole
from nexo.errors import InvalidInput, NotOwner
from nexo.topics.model import Position, TopicMessage, TopicPartition

PartitionOrNumber: TypeAlias = TopicPartition | int
"""A number alone is a partition of the one topic that the consumer reads."""


def topic_partition_of(partition: Any, topic: Any, topics: Sequence[str]) -> TopicPartition:
    """One partition; ``topic`` may be left out where ``topics`` has one."""
    if topic is None:
        if len(topics) != 1:
            raise InvalidInput(f"name the topic: the consumer reads {', '.join(topics)}")
        topic = topics[0]
    return TopicPartition(text(topic, "the topic"), whole(partition, "the partition", 0))


def topic_partitions_of(partitions: Iterable[Any], topics: Sequence[str]) -> list[TopicPartition]:
    """Partitions, each a `TopicPartition` or a number."""
    return [
        topic_partition_of(each[1], each[0], topics)
        if isinstance(each, tuple) and len(each) == 2
        else topic_partition_of(each, None, topics)
        for each in partitions
    ]


def check_owned(partitions: Iterable[TopicPartition], owned: Container[TopicPartition]) -> None:
    """Reject partitions that belong to another member."""
    for at in partitions:
        if at not in owned:
            raise NotOwner(f"{at.topic}/{at.partition} is not assigned to this consumer")


def position_in(given: Mapping[str, Any], topics: Sequence[str]) -> Position:
    """The place in ``{'partition': 0, 'offset': 1000}``, with ``'topic'`` if there are several."""
    if not {"partition", "offset"} <= given.keys() <= {"topic", "partition", "offset"}:
        raise InvalidInput(
            f"a place is {{'topic': …, 'partition': …, 'offset': …}}, not {dict(given)!r}"
        )
    at = topic_partition_of(given["partition"], given.get("topic"), topics)
    return Position(*at, checked_offset(given["offset"]))


def checked_offset(offset: Any) -> int:
    """An offset from 0 on."""
    return whole(offset, "the offset", 0)


def time_ms(time: Any) -> int:
    """A point in time, in milliseconds."""
    if isinstance(time, datetime):
        return max(0, int(time.timestamp() * 1000))
    return whole(time, "the time, in milliseconds,", 0)


One: TypeAlias = TopicMessage[Any] | Position | Mapping[str, Any] | int
Commitable: TypeAlias = One | Iterable[One] | None


def commits_of(
    what: Commitable,
    metadata: str,
    delivered: Sequence[TopicMessage[Any]],
    assignment: Sequence[TopicPartition],
) -> dict[TopicPartition, tuple[int, str]]:
    """The last processed offset per partition."""
    if isinstance(what, TopicMessage | Position | Mapping) or not isinstance(what, Iterable):
        what = [what]  # type: ignore[list-item]
    text(metadata, "metadata")
    commits: dict[TopicPartition, tuple[int, str]] = {}
    for one in what:
        place = position_of(one, delivered, assignment)
        stored = commits.get(place.topic_partition, (-1, ""))[0]
        commits[place.topic_partition] = max(stored, place.offset), metadata
    return commits


def position_of(
    one: One, delivered: Sequence[TopicMessage[Any]], assignment: Sequence[TopicPartition]
) -> Position:
    """Where a message lies."""
    topics = list(dict.fromkeys(at.topic for at in assignment))
    match one:
        case TopicMessage():
            return one.position
        case Position():
            return position_in(one._asdict(), topics)
        case int() if not isinstance(one, bool):
            return _of_offset(checked_offset(one), delivered, assignment)
        case Mapping():
            return position_in(one, topics)
    raise InvalidInput(
        f"commit takes messages, their offsets or {{'topic': …, 'partition': …, 'offset': …}}, "
        f"not {one!r}"
    )


def _of_offset(
    offset: int, delivered: Sequence[TopicMessage[Any]], assignment: Sequence[TopicPartition]
) -> Position:
    """An offset alone names a message that was just delivered."""
    found = {message.topic_partition for message in delivered if message.offset == offset}
    if not found and len(assignment) == 1:
        found = set(assignment)
    if len(found) != 1:
        many = "several delivered messages have" if found else "no delivered message has"
        raise InvalidInput(f"{many} offset {offset}: commit the message itself")
    return Position(*found.pop(), offset)
