"""What ``consumer.commit(…)`` may be given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from nexo.errors import InvalidInput
from nexo.topics.model import Message, Position, TopicPartition

One: TypeAlias = Message[Any] | Position | Mapping[str, Any] | int
Commitable: TypeAlias = One | Iterable[One] | None


def commits_of(
    what: Commitable,
    metadata: str,
    handed: Sequence[Message[Any]],
    assignment: Sequence[TopicPartition],
) -> dict[TopicPartition, tuple[int, str]]:
    """The last processed offset per partition."""
    if isinstance(what, Message | Position | Mapping | int):
        what = [what]
    commits: dict[TopicPartition, tuple[int, str]] = {}
    for one in what or ():
        place = position_of(one, handed, assignment)
        stored = commits.get(place.lane, (-1, ""))[0]
        commits[place.lane] = max(stored, place.offset), metadata
    return commits


def position_of(
    one: One, handed: Sequence[Message[Any]], assignment: Sequence[TopicPartition]
) -> Position:
    """Where a message lies."""
    match one:
        case Message():
            return one.position
        case Position():
            return one
        case bool():
            raise InvalidInput("commit takes a message or an offset")
        case int():
            return _of_offset(one, handed, assignment)
        case _:
            return _of_mapping(one)


def _of_offset(
    offset: int, handed: Sequence[Message[Any]], assignment: Sequence[TopicPartition]
) -> Position:
    """An offset alone is that of a message just handed out."""
    lanes = {message.position.lane for message in handed if message.offset == offset}
    if not lanes and len(assignment) == 1:
        lanes = set(assignment)
    if len(lanes) != 1:
        many = "several messages handed out have" if lanes else "no message handed out has"
        raise InvalidInput(f"{many} offset {offset}: commit the message itself")
    return Position(*lanes.pop(), offset)


def _of_mapping(given: Mapping[str, Any]) -> Position:
    if not isinstance(given, Mapping) or given.keys() != {"topic", "partition", "offset"}:
        raise InvalidInput("commit takes {'topic': …, 'partition': …, 'offset': …}")
    return Position(given["topic"], given["partition"], given["offset"])
