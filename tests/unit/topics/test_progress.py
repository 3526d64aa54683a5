"""What a consumer holds, has processed and has committed (SPEC G5)."""

from __future__ import annotations

from typing import Any

import pytest

from nexo.topics.model import TopicMessage, TopicPartition
from nexo.topics.progress import MessageProgress, last_of

LEFT, RIGHT = TopicPartition("orders", 0), TopicPartition("orders", 1)


def message(at: TopicPartition, offset: int) -> TopicMessage[Any]:
    return TopicMessage(*at, [offset, 0, None, None, 0, b""])


@pytest.fixture
def progress() -> MessageProgress[Any]:
    """Two messages of one partition and one of the other were handed out."""
    progress: MessageProgress[Any] = MessageProgress()
    progress.held = [message(LEFT, 4), message(RIGHT, 7), message(LEFT, 5)]
    return progress


def offsets(progress: MessageProgress[Any]) -> list[tuple[int, int]]:
    return [(each.partition, each.offset) for each in progress.held]


def test_what_was_held_is_processed_up_to_the_last_of_each_partition(
    progress: MessageProgress[Any],
) -> None:
    progress.finish()
    assert progress.processed == {LEFT: (5, ""), RIGHT: (7, "")}
    assert progress.held == []


def test_what_was_committed_by_hand_is_not_committed_again(
    progress: MessageProgress[Any],
) -> None:
    progress.committed({LEFT: (5, "mine"), RIGHT: (6, "")})
    progress.finish()
    assert progress.processed == {RIGHT: (7, "")}
    progress.held = [message(LEFT, 5)]  # read again after a seek
    progress.finish()
    assert progress.processed == {RIGHT: (7, ""), LEFT: (5, "")}


def test_a_commit_without_more_words_covers_what_is_held_too(
    progress: MessageProgress[Any],
) -> None:
    progress.finish()
    progress.held = [message(LEFT, 6)]
    assert progress.so_far("by hand") == {LEFT: (6, "by hand"), RIGHT: (7, "by hand")}


@pytest.mark.parametrize(("stored", "left"), [(4, True), (5, False), (9, False)])
def test_a_commit_ends_what_lies_at_or_before_it(
    progress: MessageProgress[Any], stored: int, left: bool
) -> None:
    progress.finish()
    progress.committed({LEFT: (stored, "")})
    assert (LEFT in progress.processed) is left
    assert RIGHT in progress.processed


def test_a_transaction_that_stored_something_ends_what_is_held_of_it(
    progress: MessageProgress[Any],
) -> None:
    progress.committed_within({LEFT: (4, "")})
    assert offsets(progress) == [(1, 7), (0, 5)]


def test_partitions_that_go_leave_only_what_was_processed_of_them(
    progress: MessageProgress[Any],
) -> None:
    progress.finish()
    progress.held = [message(LEFT, 6), message(RIGHT, 8)]
    assert progress.leave([LEFT]) == {LEFT: (5, "")}
    assert offsets(progress) == [(1, 8)]
    assert progress.processed == {RIGHT: (7, "")}


def test_what_is_taken_back_was_not_processed_nor_anything_behind_it(
    progress: MessageProgress[Any],
) -> None:
    progress.finish()
    progress.held = [message(LEFT, 6), message(RIGHT, 8)]
    assert progress.take_back([message(LEFT, 5), message(LEFT, 4)]) == {LEFT: 4}
    assert offsets(progress) == [(1, 8)]
    assert progress.processed == {RIGHT: (7, "")}


def test_messages_are_covered_by_the_last_of_each_partition() -> None:
    assert last_of([message(LEFT, 5), message(RIGHT, 7), message(LEFT, 4)]) == {
        LEFT: (5, ""),
        RIGHT: (7, ""),
    }
