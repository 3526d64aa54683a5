"""What stream calls are given: options by their names in the SPEC, and refusals that help."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import nexo
from nexo.client._async.stream.stream import Stream
from nexo.errors import AlreadyExists, InvalidInput, InvalidOption
from tests.integration.test_stream import events

__all__ = ["events"]

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (
            {"retention": {"max_age": "7d", "max_bytes": 1_000}},
            {"retention_ms": 7 * DAY_MS, "retention_bytes": 1_000},
        ),
        ({"retention": {"max_age": 60}}, {"retention_ms": 60_000}),
        ({"retention": timedelta(days=2)}, {"retention_ms": 2 * DAY_MS}),
        ({"retention": {"max_age": None, "max_bytes": None}}, {"retention_ms": 0}),
        ({"retention_ms": "30d"}, {"retention_ms": 30 * DAY_MS}),
        ({"delete_retention_ms": timedelta(hours=1)}, {"delete_retention_ms": 3_600_000}),
        ({"compaction": True}, {"cleanup": "compact"}),
        ({"compaction": False}, {"cleanup": "delete"}),
    ],
)
async def test_options_may_be_spelled_as_in_the_documents(
    aclient: nexo.AsyncClient, given: dict[str, Any], options: dict[str, Any]
) -> None:  # SPEC E1
    stream = await aclient.stream("s").create(**given)
    found = (await stream.info()).options
    assert {name: found[name] for name in options} == options
    assert (await stream.update(**given)).options == found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"retenton_ms": 5}, "known are cleanup, .*retention"),
        ({"retention": {"max_days": 5}}, "max_age and max_bytes, not 'max_days'"),
        ({"retention": {"max_age": "a"}}, "a"),
        ({"retention": "5d", "retention_ms": 5}, "given twice"),
        ({"compaction": "yes"}, "True or False"),
        ({"persistence": "disk"}, "file_async, file_sync"),
        ({"partitions": 2**70}, "must be a whole number from 1 to 1,024"),
        ({"partitions": 0}, "partitions = 0: must be a whole number from 1 to 1,024"),
    ],
)
async def test_options_that_make_no_sense_are_named(
    aclient: nexo.AsyncClient, given: dict[str, Any], says: str
) -> None:  # SPEC E1
    with pytest.raises(InvalidInput, match=says):
        await aclient.stream("s").create(**given)
    assert not await aclient.stream("s").exists()


async def test_creating_again_compares_only_what_is_given(
    aclient: nexo.AsyncClient,
) -> None:  # SPEC E1
    stream: Stream[Any] = await aclient.stream("s").create(partitions=2, retention="1d")
    await stream.update(max_message_bytes=500)
    await stream.create()
    await stream.create(partitions=2)
    with pytest.raises(AlreadyExists, match=f"retention_ms = {DAY_MS}, not {2 * DAY_MS}: update"):
        await stream.create(partitions=2, retention="2d")
    with pytest.raises(InvalidOption, match="never removed"):
        await stream.create(partitions=1, retention="2d", update=True)
    assert (await stream.info()).options["retention_ms"] == DAY_MS
    await stream.create(partitions=2, retention="2d", update=True)
    assert (await stream.info()).options["retention_ms"] == 2 * DAY_MS
    await stream.create(retention="1d", update=True)
    with pytest.raises(AlreadyExists, match="partitions = 2, not 1: use another name"):
        await stream.create(partitions=1)
    with pytest.raises(AlreadyExists, match="partitions = 2, not 3: update it"):
        await stream.create(partitions=3)
    with pytest.raises(AlreadyExists, match="persistence = file_async, not file_sync"):
        await stream.create(persistence="file_sync")
    options = (await stream.info()).options
    assert (options["retention_ms"], options["max_message_bytes"]) == (DAY_MS, 500)


Call = Callable[[Stream[Any]], Awaitable[Any]]

REFUSED: dict[str, tuple[Call, str]] = {
    "seek to a misspelt place": (
        lambda s: s.seek("g", "begining"),  # type: ignore[arg-type]
        "'beginning', 'end', an offset",
    ),
    "seek far away": (lambda s: s.seek("g", 2**70), "out of range"),
    "seek before the start": (lambda s: s.seek("g", -1), "out of range"),
    "seek to nothing": (lambda s: s.seek("g", {0: None}), "offset"),  # type: ignore[dict-item]
    "subscribe at a misspelt place": (
        lambda s: s.subscribe("g", print, start="ende"),  # type: ignore[arg-type]
        "start is 'beginning', 'end'",
    ),
    "read no bytes": (lambda s: s.read(max_bytes=0), "max_bytes"),
    "read from far away": (lambda s: s.read(0, 2**70), "offset"),
    "read a partition by name": (lambda s: s.read("0"), "partition"),  # type: ignore[arg-type]
    "read without end": (lambda s: s.read(wait=float("inf")), "wait"),
    "read before now": (lambda s: s.read(wait=-1), "wait"),
    "parked without number": (lambda s: s.group("g").parked.peek(limit=0), "limit"),
    "an unknown group option": (
        lambda s: s.consume("g", ackwait=5).join(),  # type: ignore[call-arg]
        "known are ack_wait, max",
    ),
    "a group option out of range": (
        lambda s: s.consume("g", ack_wait_ms="5").join(),  # type: ignore[call-arg]
        "ack_wait_ms",
    ),
    "a group of no text": (lambda s: s.consume(5).join(), "group"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("call", "says"), REFUSED.values(), ids=REFUSED.keys())
async def test_bad_input_is_refused_in_the_words_of_the_call(
    events: Stream[Any], call: Call, says: str
) -> None:  # SPEC F4, F5
    with pytest.raises(InvalidInput, match=says):
        await call(events)
    assert await events.groups() == []


async def test_a_streams_name_is_text(aclient: nexo.AsyncClient) -> None:  # SPEC A11
    for bad in (None, 5, b"x", "\udcff"):
        with pytest.raises(InvalidInput, match="stream's name"):
            aclient.stream(bad)  # type: ignore[arg-type]


async def test_handles_show_what_they_are(events: Stream[Any]) -> None:
    places = await events.publish_many([1, 2])
    assert repr(events) == "<Stream 'events'>"
    assert repr(places[0]) == "Published(partition=0, offset=0)"
    consumer = events.consume("g")
    assert repr(consumer) == "<Consumer of group 'g', stream 'events', not joined>"
    assert repr(await consumer.fetch()) == "<Records of stream 'events': 2>"
    await consumer.close()
    assert "closed" in repr(consumer)
    async with await events.subscribe("g", print) as subscription:
        assert repr(subscription) == "<Subscription of group 'g', stream 'events', running>"
