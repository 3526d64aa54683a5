"""Options by the names people write and by those that are stored (U8)."""

from __future__ import annotations

import msgspec
import pytest

from nexo.brokers.queue.ledger import Ledger
from nexo.brokers.queue.places import Places
from nexo.brokers.queue.records import decode_record
from nexo.brokers.queue.snapshot import restore, snapshot
from nexo.client.stream_options import GroupSettings, StreamSettings
from nexo.client.views import QueueSettings
from nexo.errors import InvalidInput, InvalidOption
from nexo.options.described import check_range, described, keywords, merged, to_stored
from nexo.options.queue import QueueOptions
from nexo.options.stream import OrderedOptions, SharedOptions, StreamOptions
from nexo.topics.settings import group_timeout_ms


def test_the_sdk_types_exactly_the_options_there_are() -> None:
    assert set(QueueSettings.__annotations__) == set(keywords(QueueOptions))
    in_retention, spelled_otherwise = {"retention_bytes"}, {"compaction"}
    known = set(keywords(StreamOptions)) - in_retention | spelled_otherwise
    assert set(StreamSettings.__annotations__) == known
    of_xstreams = {"release"}
    assert set(GroupSettings.__annotations__) == set(keywords(SharedOptions)) - of_xstreams


def test_every_duration_is_stored_in_milliseconds_and_says_so() -> None:
    for kind in (QueueOptions, StreamOptions, SharedOptions, OrderedOptions):
        for option in described(kind).values():
            assert (option.unit == "ms") == option.name.endswith("_ms")


def test_durations_are_written_without_their_unit() -> None:
    given = {"visibility_timeout": "1m", "backoff_delay": 0.5, "max_retries": 2}
    assert to_stored(QueueOptions, given) == {
        "visibility_timeout_ms": 60_000, "backoff_delay_ms": 500, "max_retries": 2,
    }  # fmt: skip


def test_the_stored_name_of_a_duration_takes_text_too() -> None:
    given = {"retention_ms": "30d", "delete_retention": 1, "retention_bytes": 7}
    assert to_stored(StreamOptions, given) == {
        "retention_ms": 30 * 86_400_000, "delete_retention_ms": 1_000, "retention_bytes": 7,
    }  # fmt: skip


def test_what_a_queue_shows_of_its_options_makes_another_like_it() -> None:
    options = QueueOptions(visibility_timeout_ms=1_500, rate=2.5, result_ttl_ms=7)
    stored = to_stored(QueueOptions, msgspec.to_builtins(options))
    assert merged(stored, QueueOptions(), "queue") == options


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"visibility": 3}, "unknown option 'visibility'; known are .*visibility_timeout"),
        ({"result_ttl": 1, "result_ttl_ms": 1_000}, "result_ttl_ms was given twice"),
    ],
)
def test_names_that_mean_nothing_or_the_same_are_refused(given: dict[str, int], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        to_stored(QueueOptions, given)


def test_a_wrong_value_is_refused_by_the_name_of_its_option() -> None:
    with pytest.raises(InvalidInput, match="visibility_timeout"):
        to_stored(QueueOptions, {"visibility_timeout": "a while"})
    with pytest.raises(
        InvalidOption, match=r"queue options: max_retries = -1: .* from 0 to 1,000,000"
    ):
        merged({"max_retries": -1}, QueueOptions(), "queue")


def test_a_number_too_long_to_print_is_refused_too() -> None:  # SPEC D1
    with pytest.raises(InvalidOption, match=r"max_retries = a number of \d+ bits: must be a whole"):
        to_stored(QueueOptions, {"max_retries": 10**5_000})


OLD = {"visibility_ms": 5_000, "backoff_ms": 7, "rate_per_s": 1.5, "key_rate_per_s": 2.5}


def test_options_that_an_earlier_version_wrote_are_read() -> None:
    ledger = Ledger()
    ledger.apply(decode_record(msgspec.msgpack.encode([1, 9, 9, OLD])))
    read = ledger.options
    assert (read.visibility_timeout_ms, read.backoff_delay_ms) == (5_000, 7)
    assert (read.rate, read.key_rate) == (1.5, 2.5)
    image = msgspec.msgpack.decode(snapshot(ledger, Places()))
    old = msgspec.msgpack.encode(image | {"options": OLD})
    assert restore(old)[0].options == read


@pytest.mark.parametrize("name", ["session_timeout_ms", "rebalance_timeout_ms"])
def test_a_groups_timeouts_are_bounded_by_their_options(name: str) -> None:
    for value in (1_000, 86_400_000):
        assert getattr(merged({name: value}, OrderedOptions(), "group"), name) == value
    for value in (0, 999, 86_400_001):
        said = rf"group options: {name} = {value}: must be a duration .* from 1s to 1d"
        with pytest.raises(InvalidOption, match=said):
            merged({name: value}, OrderedOptions(), "group")
    with pytest.raises(InvalidOption, match=r"from 1s to 1d"):
        group_timeout_ms(name.removesuffix("_ms"), 0.5)
    assert group_timeout_ms(name.removesuffix("_ms"), "1.5s") == 1_500


@pytest.mark.parametrize(
    ("bounds", "low", "high", "said"),
    [({"high": 5}, 0, 5, "use 0 to 5"), ({"low": 1}, 1, 2**80, "use 1 or more")],
)
def test_a_range_is_checked_with_or_without_an_upper_end(
    bounds: dict[str, int], low: int, high: int, said: str
) -> None:
    for value in (low, high):
        assert check_range("limit", value, **bounds) == value
    with pytest.raises(InvalidInput, match=rf"limit {low - 1} is out of range: {said}"):
        check_range("limit", low - 1, **bounds)
    if "high" in bounds:
        with pytest.raises(InvalidInput, match=said):
            check_range("limit", high + 1, **bounds)
