"""What ``consumer.commit(…)`` may be given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from nexo.client.checks import text
from nexo.errors import InvalidInput
from nexo.topics.model import Message, Position, TopicPartition
from nexo.topics.places import checked_offset, position_in

One: TypeAlias = Message[Any] | Position | Mapping[str, Any] | int
Commitable: TypeAlias = One | Iterable[One] | None


def commits_of(
    what: Commitable,
    metadata: str,
    handed: Sequence[Message[Any]],
    assignment: Sequence[TopicPartition],
) -> dict[TopicPartition, tuple[int, str]]:
    """The last processed offset per partition."""
    if isinstance(what, Message | Position | Mapping) or not isinstance(what, Iterable):
        what = [what]  # type: ignore[list-item]
    text(metadata, "metadata")
    commits: dict[TopicPartition, tuple[int, str]] = {}
    for one in what:
        place = position_of(one, handed, assignment)
        stored = commits.get(place.lane, (-1, ""))[0]
        commits[place.lane] = max(stored, place.offset), metadata
    return commits


def position_of(
    one: One, handed: Sequence[Message[Any]], assignment: Sequence[TopicPartition]
) -> Position:
    """Where a message lies."""
    topics = list(dict.fromkeys(at.topic for at in assignment))
    match one:
        case Message():
            return one.position
        case Position():
            return position_in(one._asdict(), topics)
        case int() if not isinstance(one, bool):
            return _of_offset(checked_offset(one), handed, assignment)
        case Mapping():
            return position_in(one, topics)
    raise InvalidInput(
        f"commit takes messages, their offsets or {{'topic': …, 'partition': …, 'offset': …}}, "
        f"not {one!r}"
    )


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
