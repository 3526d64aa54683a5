"""Each of Kafka's topic configurations is applied or refused; what is shown holds (SPEC R3)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nexo.config import Settings
from nexo.dialects.kafka.configs import TopicConfigs, usual_options
from nexo.errors import InvalidOption, NexoError
from nexo.model import Persistence
from nexo.options.stream import StreamOptions, options_from

SETTINGS = Settings()
REPLICATED = Settings(replicate="file:///elsewhere")


def topic(settings: Settings = SETTINGS, **options: Any) -> TopicConfigs:
    return TopicConfigs(replace(usual_options(settings), **options), settings)


def shown(configs: TopicConfigs) -> dict[str, str]:
    return {row["name"]: row["value"] for row in configs.described(None)}


def given(settings: Settings = SETTINGS, /, partitions: int = 1, **configs: str) -> dict[str, str]:
    """What is shown of a topic that is created with these, written with ``_``."""
    rows = [(name.replace("_", "."), value) for name, value in configs.items()]
    base = replace(usual_options(settings), partitions=partitions)
    options = options_from(TopicConfigs(base, settings).options(rows), base)
    return shown(TopicConfigs(options, settings))


def test_defaults_are_kafkas() -> None:
    found = shown(topic())
    assert (found["retention.bytes"], found["retention.ms"]) == ("-1", "604800000")
    assert (found["cleanup.policy"], found["max.message.bytes"]) == ("delete", "10485760")
    assert all(row["source"] == 5 for row in topic().described(None))


def test_what_an_operator_has_set_for_all_streams_holds_for_topics() -> None:
    found = shown(topic(Settings(retention_bytes=5_000, retention_ms=9_000)))
    assert (found["retention.bytes"], found["retention.ms"]) == ("5000", "9000")


def test_a_size_limit_is_that_of_each_partition() -> None:
    options = TopicConfigs(StreamOptions(partitions=4), SETTINGS)
    assert options.options([("retention.bytes", "1000")]) == {"retention_bytes": 4_000}
    assert given(partitions=4, retention_bytes="1000")["retention.bytes"] == "1000"


def test_to_keep_nothing_is_not_to_keep_all() -> None:
    found = given(retention_ms="0", retention_bytes="0")
    assert (found["retention.ms"], found["retention.bytes"]) == ("1", "1")


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "1_000"),
        ("retention.ms", "9223372036854775808"),
        ("retention.ms", ""),
        ("retention.ms", None),
        ("retention.bytes", "1e3"),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", ""),
        ("max.message.bytes", "0"),
        ("max.message.bytes", "10485761"),
        ("max.message.bytes", "-1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("delete.retention.ms", "-1"),
        ("remote.storage.enable", "maybe"),
        ("flush.messages", "0"),
        ("flush.ms", "-1"),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", "2"),
        ("message.timestamp.type", "LogAppendTime"),
        ("message.timestamp.after.max.ms", "1"),
        ("compression.type", "brotli"),
        ("max.compaction.lag.ms", "86400000"),
        ("min.compaction.lag.ms", "1"),
        ("unclean.leader.election.enable", "true"),
        ("preallocate", "perhaps"),
        ("segment.ms", "0"),
        ("segment.bytes", "many"),
        ("retention.moons", "3"),
    ],
)
def test_what_cannot_hold_is_refused(config: str, value: str | None) -> None:
    base = usual_options(SETTINGS)
    with pytest.raises(InvalidOption, match=r"."):
        options_from(TopicConfigs(base, SETTINGS).options([(config, value)]), base)


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ("segment.bytes", "52428800"),
        ("segment.ms", "1"),
        ("file.delete.delay.ms", "0"),
        ("message.timestamp.type", " CreateTime "),
        ("compression.type", "producer"),
        ("min.insync.replicas", "1"),
        ("unclean.leader.election.enable", "FALSE"),
        ("max.compaction.lag.ms", "9223372036854775807"),
    ],
)
def test_what_holds_anyway_is_taken(config: str, value: str) -> None:
    base = usual_options(SETTINGS)
    assert options_from(topic().options([(config, value)]), base) == base


@pytest.mark.parametrize(
    ("config", "value", "synced"),
    [
        ("flush.messages", "1", True),
        ("flush.messages", "4999", True),
        ("flush.messages", "5000", False),
        ("flush.messages", "9223372036854775807", False),
        ("flush.ms", "0", True),
        ("flush.ms", "49", True),
        ("flush.ms", "50", False),
    ],
)
def test_a_topic_that_is_to_be_synced_sooner_is_synced_before_the_answer(
    config: str, value: str, synced: bool
) -> None:
    found = topic().options([(config, value)])["persistence"]
    assert found is (Persistence.FILE_SYNC if synced else Persistence.FILE_ASYNC)


def test_what_is_shown_of_durability_holds() -> None:
    found = given(flush_messages="1")
    assert (found["flush.messages"], found["flush.ms"]) == ("1", "0")
    assert given(flush_messages="9000")["flush.messages"] == "5000"


def test_two_copies_are_one_here_and_one_in_the_object_store() -> None:
    assert given(REPLICATED, min_insync_replicas="2")["min.insync.replicas"] == "2"
    two = topic(REPLICATED, persistence=Persistence.REPLICATED)
    assert two.options([("min.insync.replicas", "1")]) == {"persistence": Persistence.FILE_SYNC}
    assert two.options([("flush.messages", "1")]) == {"persistence": Persistence.REPLICATED}
    with pytest.raises(InvalidOption, match="a second in the object store"):
        topic(REPLICATED).options([("min.insync.replicas", "3")])


def test_a_changed_configuration_has_its_default_again() -> None:
    names = [row["name"] for row in topic().described(None)]
    changed = topic(
        retention_ms=5, retention_bytes=5, persistence=Persistence.FILE_SYNC, cleanup="compact",
        max_message_bytes=9,
    )  # fmt: skip
    found = changed.changed([(name, 1, None) for name in names])
    again = TopicConfigs(options_from(found, usual_options(SETTINGS)), SETTINGS)
    assert shown(again) == shown(topic())


def test_lists_are_added_to_and_taken_from() -> None:
    assert topic().changed([("cleanup.policy", 2, "compact")]) == {"cleanup": "delete,compact"}
    both = topic(cleanup="delete,compact")
    assert both.changed([("cleanup.policy", 3, "delete")]) == {"cleanup": "compact"}
    with pytest.raises(InvalidOption, match="is not a list"):
        topic().changed([("retention.ms", 2, "1")])


def test_one_configuration_is_changed_once() -> None:
    with pytest.raises(NexoError, match="changed twice"):
        topic().changed([("retention.ms", 0, "1"), ("retention.ms", 1, None)])


def test_setting_all_resets_what_is_not_named() -> None:
    now = topic(retention_ms=5, persistence=Persistence.FILE_SYNC)
    found = now.replaced([("cleanup.policy", "compact")])
    assert (found["retention_ms"], found["cleanup"]) == (604_800_000, "compact")
    assert found["persistence"] is Persistence.FILE_ASYNC
    assert now.replaced([("flush.messages", "1")])["persistence"] is Persistence.FILE_SYNC
