"""Settings in Kafka's words (SPEC G1, G2)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from nexo.errors import InvalidOption
from nexo.options.units import Duration
from nexo.topics.settings import (
    CONFIG,
    at_least_one,
    group_timeout_ms,
    interval_ms,
    stream_options,
    topic_config,
    topic_options,
)


def test_kafkas_words_become_a_streams_options() -> None:
    assert stream_options(
        {"retention.ms": -1, "retention.bytes": 5, "cleanup.policy": "compact,delete"}
    ) == {"retention_ms": 0, "retention_bytes": 5, "cleanup": "delete,compact"}


def test_a_streams_options_are_shown_in_kafkas_words() -> None:
    options = dict.fromkeys(CONFIG.values(), 1) | {"partitions": 3}
    assert topic_config(options) == dict.fromkeys(CONFIG, 1)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"segment.ms": 1}, r"segment\.ms"),
        ({"retention.ms": 1.5}, r"1\.5"),
        ({"retention.ms": True}, "True"),
        ({"cleanup.policy": None}, "None"),
        ({"min.cleanable.dirty.ratio": -0.1}, "-0.1"),
    ],
)
def test_what_makes_no_sense_is_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        stream_options(config)


def test_options_in_one_mapping_are_rejected_with_how_to_write_them() -> None:
    with pytest.raises(InvalidOption, match=r"keywords here, such as partitions=4"):
        at_least_one("partitions", {"partitions": 4})


@pytest.mark.parametrize("option", [group_timeout_ms, interval_ms])
def test_a_number_that_must_be_milliseconds_is_not_taken_for_seconds(
    option: Callable[[str, Duration], int | None],
) -> None:
    with pytest.raises(InvalidOption, match=r"write '30000ms' if it is milliseconds"):
        option("session_timeout", 30_000)
    assert option("session_timeout", "30000ms") == option("session_timeout", 30) == 30_000
    assert option("session_timeout", timedelta(minutes=20)) == 1_200_000


@pytest.mark.parametrize("given", [0, -1, 0.5, "3", None, True])
def test_counts_are_whole_and_positive(given: Any) -> None:
    with pytest.raises(InvalidOption, match="partitions"):
        at_least_one("partitions", given)


def test_durations_and_flags_of_a_topic() -> None:
    assert topic_options("7d", True, 0.25) == {
        "retention.ms": 604_800_000,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0.25,
    }
    assert topic_options(None, None, None) == {}
    for unit, ms in (("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000)):
        assert topic_options(unit, None, None) == {"retention.ms": ms}
    for given in (1.5, timedelta(milliseconds=1_500), "1500ms"):
        assert topic_options(given, None, None) == {"retention.ms": 1_500}
    with pytest.raises(InvalidOption, match=r"retention: .*week"):
        topic_options("1 week", None, None)
