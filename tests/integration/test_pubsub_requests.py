"""Requests and replies over pub/sub, and headers of messages (SPEC O2; finding U12)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

import nexo
from nexo.errors import NoResponder, ReplyFailed, RequestTimeout
from nexo.types import Message


@dataclass
class Sum:
    total: int


async def add(message: Message[list[int]]) -> dict[str, int]:
    return {"total": sum(message.value)}


async def test_a_request_gets_the_reply(aclient: nexo.AsyncClient) -> None:
    async with await aclient.pubsub.reply("math/add", add):
        assert await aclient.pubsub.request("math/add", [1, 2]) == {"total": 3}
        assert await aclient.pubsub.request("math/add", [1, 2], Sum, timeout=5) == Sum(3)
        asked = (aclient.pubsub.request("math/add", [n]) for n in range(50))
        assert [each["total"] for each in await asyncio.gather(*asked)] == list(range(50))


def test_threads_ask_too(client: nexo.Client, url: str) -> None:
    with nexo.Client(url) as other, other.pubsub.reply("double", lambda message: message.value * 2):
        assert client.pubsub.request("double", 4) == 8
        assert client.pubsub.request("double", "ab", timeout="5s") == "abab"


async def test_no_responder_is_an_error_at_once(aclient: nexo.AsyncClient) -> None:
    with pytest.raises(NoResponder, match="math/add"):
        await aclient.pubsub.request("math/add", 1, timeout=60)


async def test_a_reply_that_does_not_come_is_waited_for_no_longer(
    aclient: nexo.AsyncClient,
) -> None:
    async with await aclient.pubsub.subscribe("math/add"):
        with pytest.raises(RequestTimeout, match="math/add"):
            await aclient.pubsub.request("math/add", 1, timeout=0.01)


async def test_a_responder_that_fails_says_so(aclient: nexo.AsyncClient) -> None:
    async with await aclient.pubsub.reply("fails", lambda message: 1 / message.value):
        with pytest.raises(ReplyFailed, match="ZeroDivisionError"):
            await aclient.pubsub.request("fails", 0)
        assert await aclient.pubsub.request("fails", 1) == 1


async def test_every_responder_replies_and_those_of_a_group_share(
    aclient: nexo.AsyncClient, url: str
) -> None:
    async with nexo.AsyncClient(url) as other, nexo.AsyncClient(url) as third:
        for number, client in enumerate((other, third)):
            await client.pubsub.reply("who", lambda _, n=number: n)  # type: ignore[misc]
            await client.pubsub.reply("one", lambda _, n=number: n, group="g")  # type: ignore[misc]
        replies = await aclient.pubsub.request_many("who", None)
        assert sorted(reply.value for reply in replies) == [0, 1]
        assert len(await aclient.pubsub.request_many("one", None)) == 1


async def test_a_message_carries_headers(aclient: nexo.AsyncClient) -> None:
    async with await aclient.pubsub.subscribe("a/#") as messages:
        await aclient.pubsub.publish("a/b", 1, headers={"traceparent": "00-1", "n": 2})
        await aclient.pubsub.publish("a/b", 2)
        first, second = await messages.get(5), await messages.get(5)
    assert first.headers == {"traceparent": "00-1", "n": 2}
    assert (first.value, second.value, second.headers) == (1, 2, {})
