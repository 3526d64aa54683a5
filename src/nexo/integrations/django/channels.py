"""Django Channels' layer (SPEC M2): channels are lists in the store, groups are maps.

| key | value |
|---|---|
| ``<prefix>/channel/<name>`` | list of messages, each with its time of expiry |
| ``<prefix>/group/<name>`` | map of channel name to when it joined |
| topic ``<prefix>/wake/<name>`` | the names of channels that have messages |

A message is taken off its list by whoever receives it, so each has one receiver. It is lost if
that process dies before it is handled: delivery is at most once, as Channels asks for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import groupby
from typing import Any
from uuid import uuid4

import msgspec
from channels.exceptions import ChannelFull
from channels.layers import BaseChannelLayer

import nexo
from nexo.integrations.django.background import Background
from nexo.types import AsyncSubscription, Message

_LOOK_S = 5.0
"""How long a receiver that nobody wakes waits before it looks itself: a wake-up can be lost."""


class NexoChannelLayer(BaseChannelLayer):
    """``CONFIG``: ``url`` (else ``NEXO_URL`` or a local server), ``prefix`` (``channels``),
    ``expiry`` (60 s), ``group_expiry`` (a day), ``capacity`` (100) and ``channel_capacity``.
    """

    extensions = ("groups", "flush")

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str = "channels",
        expiry: float = 60,
        group_expiry: float = 86_400,
        capacity: int = 100,
        channel_capacity: Mapping[Any, int] | None = None,
    ) -> None:
        super().__init__(expiry=expiry, capacity=capacity)
        self.channel_capacity = self.compile_capacities(channel_capacity or {})
        self.prefix = prefix
        self.group_expiry = group_expiry
        self._process = uuid4().hex
        self._background = Background(url)
        self._wakers: dict[str, _Waker] = {}
        """By the part of a channel's name that its process has in common; used on the
        background's loop only."""

    # -- channels

    async def new_channel(self, prefix: str = "specific") -> str:
        """A name that only this process receives from."""
        return f"{prefix}.{self._process}!{uuid4().hex[:16]}"

    async def send(self, channel: str, message: dict[str, Any]) -> None:
        """Put a message on a channel; `ChannelFull` if too many wait there."""
        _check(message)
        self.require_valid_channel_name(channel)
        raw = self._packed(message)
        if not await self._background.call(lambda client: self._send(client, channel, raw)):
            raise ChannelFull(channel)

    async def receive(self, channel: str) -> dict[str, Any]:
        self.require_valid_channel_name(channel)
        handover: Future[bytes] = Future()
        try:
            await self._background.call(lambda client: self._receive(client, channel, handover))
        except asyncio.CancelledError:
            if not handover.cancel():  # it was given a message just now
                self._give_back(channel, handover.result())
            raise
        return _unpacked(handover.result())[1]

    async def _send(self, client: nexo.AsyncClient, channel: str, raw: bytes) -> bool:
        if not await self._put(client, channel, raw):
            return False
        await self._wake(client, [channel])
        return True

    async def _put(self, client: nexo.AsyncClient, channel: str, raw: bytes) -> bool:
        """Whether there was room; if not, the message is taken off the list again."""
        waiting = client.store.list(self._place("channel", channel), bytes)
        count, _ = await asyncio.gather(waiting.push(raw), waiting.expire(self.expiry))
        if count > self.get_capacity(channel):
            await waiting.pop()
            return False
        return True

    async def _wake(self, client: nexo.AsyncClient, channels: list[str]) -> None:
        """Send each process one message that names its channels."""
        for process, own in groupby(sorted(channels), self.non_local_name):
            await client.pubsub.publish(self._place("wake", process), list(own))

    async def _receive(self, client: nexo.AsyncClient, channel: str, to: Future[bytes]) -> None:
        """Give ``to`` the next message, unless the caller on its own loop has cancelled it."""
        waker = await self._waker(client, self.non_local_name(channel))
        arrived = waker.enter(channel)
        try:
            while True:
                arrived.clear()
                raw = await self._take(client, channel)
                if raw is None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_S):
                            await arrived.wait()
                elif _is_fresh(raw):
                    if to.set_running_or_notify_cancel():
                        to.set_result(raw)
                    else:
                        self._give_back(channel, raw)
                    return
        finally:
            waker.leave(channel)
            await self._rest(waker)

    async def _take(self, client: nexo.AsyncClient, channel: str) -> bytes | None:
        """The oldest message; put back if the receiver is cancelled meanwhile."""
        waiting = client.store.list(self._place("channel", channel), bytes)
        taking = asyncio.ensure_future(waiting.pop_left())
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            with suppress(nexo.NexoError):
                if (raw := await taking) is not None:
                    await self._put_back(client, channel, raw)
            raise

    def _give_back(self, channel: str, raw: bytes) -> None:
        """Put a message back in a task of its own: its receiver's is being cancelled."""
        self._background.submit(lambda client: self._put_back(client, channel, raw))

    async def _put_back(self, client: nexo.AsyncClient, channel: str, raw: bytes) -> None:
        """Put a message that nobody got back to the front of its channel."""
        waiting = client.store.list(self._place("channel", channel), bytes)
        await asyncio.gather(waiting.push_left(raw), waiting.expire(self.expiry))
        await self._wake(client, [channel])

    # -- waking

    async def _waker(self, client: nexo.AsyncClient, process: str) -> _Waker:
        waker = self._wakers.get(process)
        if waker is None:
            waker = self._wakers[process] = _Waker(process)
        async with waker.subscribing:
            if waker.subscription is None:
                waker.subscription = await client.pubsub.subscribe(
                    self._place("wake", process), waker.heard, retained=False
                )
        return waker

    async def _rest(self, waker: _Waker) -> None:
        """Unsubscribe from what nobody here receives; the process's own topic stays."""
        if waker.waiting or waker.process.endswith(f".{self._process}!"):
            return
        if self._wakers.get(waker.process) is waker:
            del self._wakers[waker.process]
        if waker.subscription is not None:
            with suppress(nexo.NexoError):
                await waker.subscription.close()

    # -- groups

    async def group_add(self, group: str, channel: str) -> None:
        """Send a channel what is sent to a group, for ``group_expiry`` from now."""
        self.require_valid_group_name(group)
        self.require_valid_channel_name(channel)

        async def add(client: nexo.AsyncClient) -> None:
            members = client.store.map(self._place("group", group), float)
            await asyncio.gather(
                members.set(channel, time.time()), members.expire(self.group_expiry)
            )

        await self._background.call(add)

    async def group_discard(self, group: str, channel: str) -> None:
        """Take a channel out of a group; it need not be in it."""
        self.require_valid_group_name(group)
        self.require_valid_channel_name(channel)

        async def discard(client: nexo.AsyncClient) -> None:
            await client.store.map(self._place("group", group)).delete(channel)

        await self._background.call(discard)

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        """Send to every channel of a group; those that are full miss it."""
        _check(message)
        self.require_valid_group_name(group)
        raw = self._packed(message)

        async def send(client: nexo.AsyncClient) -> None:
            channels = await self._members(client, group)
            put = await asyncio.gather(*(self._put(client, each, raw) for each in channels))
            await self._wake(
                client, [each for each, fits in zip(channels, put, strict=True) if fits]
            )

        await self._background.call(send)

    async def _members(self, client: nexo.AsyncClient, group: str) -> list[str]:
        members = client.store.map(self._place("group", group), float)
        joined, oldest = await members.all(), time.time() - self.group_expiry
        if expired := [name for name, when in joined.items() if when < oldest]:
            await members.delete(*expired)
        return [name for name, when in joined.items() if when >= oldest]

    # -- all of it

    async def flush(self) -> None:
        """Delete every channel and group of this prefix."""

        async def flush(client: nexo.AsyncClient) -> None:
            for kind in ("channel", "group"):
                keys = [key async for key in client.store.keys(self._place(kind, ""))]
                if keys:
                    await client.store.delete_many(*keys)

        await self._background.call(flush)

    async def close(self) -> None:
        """End this process's connections."""
        self._wakers.clear()
        await self._background.close()

    def _place(self, kind: str, name: str) -> str:
        """The key or topic of one thing; see the table above."""
        return f"{self.prefix}/{kind}/{name}"

    def _packed(self, message: dict[str, Any]) -> bytes:
        return msgspec.msgpack.encode((time.time() + self.expiry, message))


class _Waker:
    """Wakes the receivers of one process's channels, or of one channel that processes share."""

    def __init__(self, process: str) -> None:
        self.process = process
        self.subscribing = asyncio.Lock()
        self.subscription: AsyncSubscription[Any] | None = None
        self.waiting: dict[str, tuple[asyncio.Event, int]] = {}
        """By channel: what its receivers wait for, and how many they are."""

    def enter(self, channel: str) -> asyncio.Event:
        arrived, count = self.waiting.get(channel) or (asyncio.Event(), 0)
        self.waiting[channel] = arrived, count + 1
        return arrived

    def leave(self, channel: str) -> None:
        arrived, count = self.waiting[channel]
        if count > 1:
            self.waiting[channel] = arrived, count - 1
            arrived.set()  # one may have been woken for what is still there
        else:
            del self.waiting[channel]

    def heard(self, message: Message[list[str]]) -> None:
        for channel in message.value:
            if channel in self.waiting:
                self.waiting[channel][0].set()


def _check(message: Any) -> None:
    if not isinstance(message, dict):
        raise TypeError("a message is a dict")


def _is_fresh(raw: bytes) -> bool:
    """Whether a message has not expired."""
    return _unpacked(raw)[0] > time.time()


def _unpacked(raw: bytes) -> tuple[float, dict[str, Any]]:
    """When a message expires, and the message."""
    return msgspec.msgpack.decode(raw, type=tuple[float, dict[str, Any]])
