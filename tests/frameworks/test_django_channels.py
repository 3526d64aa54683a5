"""Django Channels' documented contract of layers (SPEC M2)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from asgiref.sync import async_to_sync
from channels.exceptions import ChannelFull

import nexo
from nexo.integrations.django.channels import NexoChannelLayer
from tests.timing import wait_until


@pytest.fixture
async def layer(url: str) -> AsyncIterator[NexoChannelLayer]:
    layer = NexoChannelLayer(url, capacity=3, channel_capacity={"wide.*": 10})
    yield layer
    await layer.close()


@pytest.fixture
async def other(url: str) -> AsyncIterator[NexoChannelLayer]:
    """The layer of another process."""
    layer = NexoChannelLayer(url, capacity=3)
    yield layer
    await layer.close()


async def nothing_comes(layer: NexoChannelLayer, channel: str) -> bool:
    try:
        async with asyncio.timeout(0.05):
            await layer.receive(channel)
    except TimeoutError:
        return True
    return False


async def test_messages_come_once_in_order_and_as_they_were(layer: NexoChannelLayer) -> None:
    first = {"type": "a", "bytes": b"\x00\xff", "nested": {"list": [1, 2.5, None, "🎈"]}}
    await layer.send("work", first)
    await layer.send("work", {"type": "b"})
    assert await layer.receive("work") == first
    assert await layer.receive("work") == {"type": "b"}
    assert await nothing_comes(layer, "work")


async def test_a_receiver_is_woken_by_another_process(
    layer: NexoChannelLayer, other: NexoChannelLayer
) -> None:
    channel = await layer.new_channel()
    receiving = asyncio.create_task(layer.receive(channel))
    shared = asyncio.create_task(layer.receive("work"))
    await asyncio.sleep(0)
    await other.send(channel, {"type": "specific"})
    await other.send("work", {"type": "shared"})
    async with asyncio.timeout(4):
        assert await receiving == {"type": "specific"}
        assert await shared == {"type": "shared"}


async def test_new_channels_differ_and_are_valid(layer: NexoChannelLayer) -> None:
    names = {await layer.new_channel() for _ in range(10)}
    assert len(names) == 10
    assert all(layer.require_valid_channel_name(name) for name in names)
    assert (await layer.new_channel("mine")).startswith("mine.")


async def test_a_full_channel_refuses(layer: NexoChannelLayer) -> None:
    for n in range(3):
        await layer.send("work", {"n": n})
    with pytest.raises(ChannelFull):
        await layer.send("work", {"n": 3})
    assert await layer.receive("work") == {"n": 0}
    await layer.send("work", {"n": 4})
    assert [(await layer.receive("work"))["n"] for _ in range(3)] == [1, 2, 4]
    for n in range(10):
        await layer.send("wide.one", {"n": n})


async def test_messages_expire(url: str, client: nexo.Client) -> None:
    layer = NexoChannelLayer(url, expiry=0.1)
    await layer.send("work", {"type": "old"})
    await asyncio.to_thread(wait_until, lambda: not list(client.store.keys("channels/channel/")))
    await layer.send("work", {"type": "new"})
    assert await layer.receive("work") == {"type": "new"}
    await layer.close()


async def test_groups_reach_all_members_of_all_processes(
    layer: NexoChannelLayer, other: NexoChannelLayer
) -> None:
    mine, theirs, gone = await layer.new_channel(), await other.new_channel(), "gone"
    for channel in (mine, theirs, gone):
        await layer.group_add("chat", channel)
    await layer.group_add("chat", mine)  # twice does no harm
    await other.group_discard("chat", gone)
    await other.group_discard("chat", "never-was-in")
    await other.group_send("chat", {"type": "hello"})
    assert await layer.receive(mine) == await other.receive(theirs) == {"type": "hello"}
    assert await nothing_comes(layer, mine)
    assert await nothing_comes(layer, gone)
    await layer.group_send("empty", {"type": "nobody"})


async def test_a_full_member_misses_a_group_message_and_the_others_do_not(
    layer: NexoChannelLayer,
) -> None:
    for channel in ("full", "free"):
        await layer.group_add("chat", channel)
    for n in range(3):
        await layer.send("full", {"n": n})
    await layer.group_send("chat", {"n": 3})
    assert [(await layer.receive("full"))["n"] for _ in range(3)] == [0, 1, 2]
    assert await nothing_comes(layer, "full")
    assert await layer.receive("free") == {"n": 3}


async def test_membership_expires(url: str, client: nexo.Client) -> None:
    layer = NexoChannelLayer(url, group_expiry=0.05)
    await layer.group_add("chat", "a")
    await asyncio.to_thread(wait_until, lambda: not list(client.store.keys("channels/group/")))
    await layer.group_send("chat", {"type": "late"})
    assert await nothing_comes(layer, "a")
    await layer.close()


async def test_a_cancelled_receive_loses_nothing(layer: NexoChannelLayer) -> None:
    for n in range(20):
        receiving = asyncio.create_task(layer.receive("work"))
        await asyncio.sleep(0.001 * (n % 5))
        await layer.send("work", {"n": n})
        receiving.cancel()
        try:
            found = await receiving
        except asyncio.CancelledError:
            async with asyncio.timeout(10):
                found = await layer.receive("work")
        assert found == {"n": n}


async def test_what_arrives_while_the_caller_goes_is_put_back(
    layer: NexoChannelLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, loop, gone = layer._take, asyncio.get_running_loop(), threading.Event()

    async def taken_too_late(client: nexo.AsyncClient, channel: str) -> bytes | None:
        raw = await take(client, channel)
        loop.call_soon_threadsafe(receiving.cancel)
        assert gone.wait(10)
        return raw

    await layer.send("work", {"n": 1})
    with monkeypatch.context() as patched:
        patched.setattr(layer, "_take", taken_too_late)
        receiving = asyncio.create_task(layer.receive("work"))
        receiving.add_done_callback(lambda _: gone.set())
        with pytest.raises(asyncio.CancelledError):
            await receiving
    async with asyncio.timeout(10):
        assert await layer.receive("work") == {"n": 1}


async def test_names_and_messages_are_checked(layer: NexoChannelLayer) -> None:
    with pytest.raises(TypeError):
        await layer.send("not a name", {})
    with pytest.raises(TypeError):
        await layer.group_add("¡group", "a")
    with pytest.raises(TypeError):
        await layer.group_send("x" * 101, {})
    with pytest.raises(TypeError, match="dict"):
        await layer.send("work", "text")  # type: ignore[arg-type]


async def test_flush_empties_this_prefix_only(
    layer: NexoChannelLayer, url: str, client: nexo.Client
) -> None:
    await layer.send("work", {})
    await layer.group_add("chat", "a")
    client.store.set("mine", 1)
    await layer.flush()
    assert list(client.store.keys()) == ["mine"]


async def test_nobody_stays_subscribed_to_a_channel_that_is_not_received(
    layer: NexoChannelLayer, client: nexo.Client
) -> None:
    assert await nothing_comes(layer, "work")
    await asyncio.to_thread(wait_until, lambda: client.pubsub.subscriptions() == [])


def test_sync_code_sends_on_a_loop_of_its_own(url: str) -> None:
    layer = NexoChannelLayer(url)
    for n in range(3):
        async_to_sync(layer.send)("work", {"n": n})
    assert [async_to_sync(layer.receive)("work")["n"] for _ in range(3)] == [0, 1, 2]
    async_to_sync(layer.close)()
