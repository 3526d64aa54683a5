"""Locks, semaphores, rate limits and cached calls, over both clients (SPEC O1; finding U3)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import nexo
from nexo.errors import Conflict, InvalidOption, LeaseLost, RequestTimeout
from tests.timing import eventually


def test_a_key_is_deleted_only_if_it_holds_the_value(client: nexo.Client) -> None:
    """U3: the safe release of a hand-made lock."""
    client.store.set("k", {"owner": "me"})
    assert not client.store.delete("k", if_equal={"owner": "you"})
    assert not client.store.delete("k", if_equal=None)
    assert client.store.delete("k", if_equal={"owner": "me"})
    assert not client.store.exists("k")


async def test_one_at_a_time_holds_a_lock(aclient: nexo.AsyncClient, url: str) -> None:
    inside = most = 0
    numbers: list[int] = []

    async def work(client: nexo.AsyncClient) -> None:
        nonlocal inside, most
        async with client.store.lock("report") as lock:
            inside += 1
            most = max(most, inside)
            numbers.append(lock.number)
            await asyncio.sleep(0)
            lock.check()
            inside -= 1

    async with nexo.AsyncClient(url) as other:
        await asyncio.gather(*(work(client) for client in (aclient, other) for _ in range(5)))
    assert most == 1
    assert numbers == sorted(set(numbers)), "each holder has a higher number"


def test_threads_take_turns(client: nexo.Client) -> None:
    inside: list[int] = []

    def work(number: int) -> None:
        with client.store.lock("report"):
            inside.append(number)
            assert len(inside) == 1
            inside.remove(number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))


def test_a_lock_that_is_not_free_in_time_is_an_error(client: nexo.Client) -> None:
    with client.store.lock("report") as held:
        other = client.store.lock("report", timeout=0)
        with pytest.raises(RequestTimeout, match="report"):
            other.acquire()
        with pytest.raises(Conflict):
            held.acquire()
        with pytest.raises(LeaseLost):
            other.check()
    assert other.acquire("5s") > held.number
    assert other.release()
    assert not other.release()


async def test_the_lease_of_a_held_lock_is_renewed(aclient: nexo.AsyncClient) -> None:
    async with aclient.store.lock("report", ttl=1) as lock:
        left = await aclient.store.ttl("report") or 0
        while (now := await aclient.store.ttl("report") or 0) <= left:
            left = now
            await asyncio.sleep(0.01)
        lock.check()
        with pytest.raises(RequestTimeout):
            await aclient.store.lock("report", timeout=0).acquire()


async def test_a_lock_that_was_lost_says_so(aclient: nexo.AsyncClient) -> None:
    lock = aclient.store.lock("report", ttl=0.06)
    await lock.acquire()
    await aclient.store.delete("report")
    await eventually(lambda: not lock.held)
    with pytest.raises(LeaseLost):
        lock.check()


async def test_a_lock_whose_lease_ended_before_the_reply_came_is_waited_for_again(
    aclient: nexo.AsyncClient, client: nexo.Client
) -> None:
    await aclient.store.set("connected", 1)
    late, other = aclient.store.lock("report", ttl=0.2), client.store.lock("report")
    acquiring = asyncio.create_task(late.acquire())
    for _ in range(3):
        await asyncio.sleep(0)
    while not client.store.exists("report"):  # the loop stands still: the reply is not read
        pass
    taken = other.acquire("30s")
    other.release()
    assert await acquiring > taken


async def test_a_lock_that_was_waited_for_longer_than_its_lease_is_held(
    aclient: nexo.AsyncClient,
) -> None:
    first, second = (aclient.store.lock("report", ttl=ttl_s) for ttl_s in (30, 1))
    await first.acquire()
    acquiring = asyncio.create_task(second.acquire())
    with pytest.raises(RequestTimeout):
        await aclient.store.lock("report", timeout=1.1).acquire()
    await first.release()
    assert await acquiring > first.number


async def test_a_holder_that_stood_still_for_longer_than_its_lease_knows(
    aclient: nexo.AsyncClient, client: nexo.Client
) -> None:
    lock = aclient.store.lock("report", ttl=0.2)
    await lock.acquire()
    client.store.lock("report", timeout=30).acquire()  # the loop stands still meanwhile
    assert not lock.held
    with pytest.raises(LeaseLost):
        lock.check()


async def test_a_cancelled_wait_leaves_no_lease_behind(aclient: nexo.AsyncClient) -> None:
    async with aclient.store.lock("report"):
        waiting = asyncio.create_task(aclient.store.lock("report").acquire())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with aclient.store.lock("report", timeout=5):
        pass


def test_a_semaphore_has_as_many_places_as_its_limit(client: nexo.Client) -> None:
    with (
        client.store.semaphore("slots", 2),
        client.store.semaphore("slots", 2),
        pytest.raises(RequestTimeout),
    ):
        client.store.semaphore("slots", 2, timeout=0).acquire()
    with client.store.semaphore("slots", 2, timeout=5):
        pass


@pytest.mark.parametrize("kind", ["bucket", "window"])
def test_a_rate_limiter_allows_so_many(client: nexo.Client, kind: str) -> None:
    limiter = client.store.rate_limiter("api", 3, "1h", kind=kind)  # type: ignore[arg-type]
    assert [limiter.allow() for _ in range(5)] == [True] * 3 + [False] * 2
    decision = limiter.ask()
    assert not decision.allowed
    assert decision.retry_after > 0
    with pytest.raises(RequestTimeout, match="too late"):
        limiter.wait(timeout="1ms")


def test_a_rate_limiter_is_waited_for(client: nexo.Client) -> None:
    limiter = client.store.rate_limiter("api", 50, 1, burst=1)
    for _ in range(3):
        limiter.wait(timeout=5)
    with pytest.raises(InvalidOption):
        client.store.rate_limiter("api", 1, 1, burst=2, kind="window")


def test_the_result_of_a_function_is_cached_for_all(client: nexo.Client) -> None:
    calls: list[int] = []

    @client.store.cached("1m")
    def square(number: int) -> int:
        calls.append(number)
        return number * number

    assert [square(3), square(3), square(number=4), square(number=4)] == [9, 9, 16, 16]
    assert calls == [3, 4]


async def test_callers_of_a_cached_function_share_one_run(aclient: nexo.AsyncClient) -> None:
    calls = 0

    @aclient.store.cached(60, key=lambda name: f"user:{name}")
    async def user(name: str) -> dict[str, str]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        return {"name": name}

    found = await asyncio.gather(*(user("ana") for _ in range(10)))
    assert found == [{"name": "ana"}] * 10
    assert calls == 1
    assert await aclient.store.get("user:ana") == {"name": "ana"}


def test_nothing_is_a_result_too(client: nexo.Client) -> None:
    calls = threading.Semaphore(1)

    @client.store.cached(60)
    def nothing() -> None:
        assert calls.acquire(blocking=False)

    nothing()
    nothing()
