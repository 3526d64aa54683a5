"""The clients against a real server: connecting, reconnecting, and what they say of it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pickle
import subprocess
import sys
import time
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import structs

import nexo
from nexo import errors, testing, types
from nexo.client._async.link.link import Link as AsyncLink
from nexo.client._sync.link.link import Link
from nexo.client._sync.requests import status
from nexo.model import Broker
from tests.timing import often_within


def test_connect_gives_a_client_whose_server_answered(url: str) -> None:
    """SPEC K1."""
    with nexo.connect(url) as client:
        assert 0 < client.ping() < 5


async def test_connect_async_gives_the_same_for_asyncio(url: str) -> None:
    """SPEC K1."""
    async with await nexo.connect_async(url) as client:
        assert 0 < await client.ping() < 5


def test_connecting_to_nothing_is_a_clear_error() -> None:
    with pytest.raises(errors.ConnectionLost, match=r"nexo://127\.0\.0\.1:1: .*refused"):
        nexo.connect("nexo://127.0.0.1:1?while_down=fail")


async def test_connecting_to_nothing_is_a_clear_error_in_asyncio() -> None:
    with pytest.raises(errors.ConnectionLost, match=r"cannot connect to nexo://127\.0\.0\.1:1"):
        await nexo.connect_async("nexo://127.0.0.1:1?while_down=fail")


async def test_closing_waits_for_what_need_not_be_awaited(aclient: nexo.AsyncClient) -> None:
    """SPEC D2, D3, E2."""
    stream, queue = aclient.stream("s"), aclient.queue("q")
    await stream.create(partitions=2)
    await queue.create()
    await queue.push("done")
    async with nexo.AsyncClient(str(aclient.address)) as other:
        (job,) = await other.queue("q").pop()
        other.stream("s").publish("plain")
        other.stream("s").publish("keyed", key="k")
        other.queue("q").push("new")
        job.ack()
    found = [record.value for partition in range(2) for record in await stream.read(partition)]
    assert sorted(found) == ["keyed", "plain"]
    info = await queue.info()
    assert (info.waiting, info.finished_total) == (1, 1)


def test_an_async_client_on_another_loop_is_told_at_once(url: str) -> None:
    """SPEC A6: also while its own loop runs, where a request would be sent and never answered."""
    client = nexo.AsyncClient(url, down_wait=60)

    async def incr() -> float:
        return await client.store.incr("uses")

    async def publish() -> int:
        return await client.pubsub.publish("topic", 1)

    async def elsewhere() -> None:
        with pytest.raises(errors.InvalidInput, match="belongs to another event loop"):
            await incr()
        with pytest.raises(errors.InvalidInput, match="belongs to another event loop"):
            await publish()

    async def here() -> None:
        assert (await incr(), await publish()) == (1, 0)
        await asyncio.to_thread(asyncio.run, elsewhere())
        assert await incr() == 2

    asyncio.run(here())
    asyncio.run(elsewhere())
    asyncio.run(client.close())


def test_the_url_may_come_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXO_URL", url)
    with nexo.connect() as client:
        client.ping()


def test_options_go_before_the_url() -> None:
    with nexo.Client("nexo://host?timeout=1", timeout=2.0) as client:
        assert client.address.timeout_s == 2.0


def test_things_say_what_they_are(client: nexo.Client, url: str) -> None:
    """SPEC K1: at a prompt."""
    jobs = client.queue("jobs").create()
    jobs.push_many([1, 2])
    batch = jobs.pop(2)
    batch[0].ack()
    shown = (client, client.store, client.pubsub, client.pubsub("a/+"), client.store.list("l"))
    assert list(map(repr, (*shown, batch))) == [
        f"<Client of {url}>", f"<Store of {url}>", f"<PubSub of {url}>", "<Topic 'a/+'>",
        "<StoreList 'l'>", "<JobBatch of 2 jobs of 'jobs', 1 unsettled>",
    ]  # fmt: skip
    batch.nack("later", delay=60)
    assert "value 2, 1 failed attempts" in repr(jobs.scheduled.list()[0])


@pytest.mark.parametrize("broker", Broker)
async def test_every_broker_answers_on_its_own_connection(
    client: nexo.Client, aclient: nexo.AsyncClient, broker: Broker
) -> None:
    """SPEC A3."""
    assert client.ping(broker) > 0
    assert await aclient.ping(broker) > 0


async def test_info_has_all_that_every_broker_reports(
    client: nexo.Client, aclient: nexo.AsyncClient
) -> None:
    client.store.set("k", 1)
    found = await aclient.info()
    for broker, typed in structs.asdict(found).items():
        said = status(client.link(Broker[broker.upper()]).call, Broker[broker.upper()])
        assert unnamed(said, msgspec.to_builtins(typed)) == []
    assert found.store.keys == client.store.info().keys == client.info().store.keys == 1
    assert (await aclient.store.info()).process.pid == found.store.process.pid > 0


def unnamed(said: dict[str, Any], typed: dict[str, Any], path: str = "") -> list[str]:
    """The fields that the result's type lacks; what is named by users is a dict in both."""
    missing = [path + name for name in said.keys() - typed.keys() if path != "requests."]
    for name in said.keys() & typed.keys():
        if isinstance(said[name], dict):
            missing += unnamed(said[name], typed[name], f"{path}{name}.")
    return missing


def test_info_takes_the_report_of_a_newer_server_and_of_an_older_one() -> None:
    newer = {"keys": 3, "disk": {"free_bytes": 7, "heat": 1}, "mood": "good"}
    info = msgspec.convert(newer, types.StoreInfo)
    assert (info.keys, info.disk.free_bytes, info.disk.full, info.replica) == (3, 7, False, None)


async def test_the_first_requests_may_come_all_at_once(aclient: nexo.AsyncClient) -> None:
    """One connection per broker, however many ask for it first."""
    await asyncio.gather(*(aclient.ping(broker) for broker in Broker for _ in range(50)))
    assert (await aclient.info()).store.connections == len(Broker)


def test_the_sync_client_reconnects(nexo_server: testing.Server) -> None:
    """SPEC A5."""
    with nexo.connect(nexo_server.url, timeout=2) as client:
        nexo_server.stop()
        began_s = time.monotonic()
        with pytest.raises(errors.ConnectionLost):
            client.ping()
        assert time.monotonic() - began_s < 10, "not as long as it waits by default"
        nexo_server.start()
        client.ping()


async def test_the_async_client_reconnects(nexo_server: testing.Server) -> None:
    """SPEC A5."""
    async with await nexo.connect_async(nexo_server.url) as client:
        await asyncio.to_thread(nexo_server.crash)
        with contextlib.suppress(
            errors.ConnectionLost, TimeoutError
        ):  # if the cut was not yet noticed
            await asyncio.wait_for(client.ping(), 0.05)
        await asyncio.to_thread(nexo_server.start)
        await client.ping()


def test_an_embedded_server_is_up_quickly_and_leaves_nothing(tmp_path: object) -> None:
    """SPEC K2; the imports of the first start are not counted."""
    with testing.server():
        pass
    assert often_within(0.3, _start_s)


def _start_s() -> float:
    start_s = time.perf_counter()
    with testing.server() as url:
        took_s = time.perf_counter() - start_s
        with nexo.connect(url) as client:
            client.ping()
    return took_s


def test_a_bad_setting_of_an_embedded_server_is_named() -> None:
    with (
        pytest.raises(errors.ConfigError, match="no_such_setting"),
        testing.server(no_such_setting=1),  # type: ignore[call-arg]
    ):
        pass


def test_importing_nexo_loads_nothing_heavy() -> None:
    code = "import sys, nexo; print([m for m in sys.modules if m in ('asyncio', 'msgspec')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_public_names_are_there_and_unknown_ones_are_not() -> None:
    for name in nexo.__all__:
        assert getattr(nexo, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        nexo.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_what_clients_hand_out_has_public_names(client: nexo.Client) -> None:  # SPEC K1
    queue, stream = client.queue("q", int).create(), client.stream("s", int).create()
    queue.push(1)
    stream.publish(2)
    (job,) = queue.pop()
    (record,) = stream.consume("g").fetch()
    with client.pubsub.subscribe("t", type_=int) as subscription:
        client.pubsub.publish("t", 3)
        message = subscription.get(5)
        assert isinstance(subscription, types.Subscription)
    assert isinstance(queue, types.Queue)
    assert isinstance(stream, types.Stream)
    assert isinstance(job, types.Job)
    assert isinstance(record, types.StreamRecord)
    assert isinstance(message, types.Message)
    assert all(hasattr(types, name) for name in types.__all__)
    assert nexo.types is types


def test_every_type_that_clients_return_can_be_named() -> None:
    """SPEC K1: what public methods and attributes return is in `nexo.types`."""
    known = {getattr(types, name) for name in types.__all__}
    clients = {nexo.Client, nexo.AsyncClient}
    classes = {kind for kind in known - {types.Result} if isinstance(kind, type)} | clients
    found = {part for kind in classes for part in returned(kind)}
    assert len(found) > 40
    assert found - known - clients == {Link, AsyncLink}


def returned(kind: type) -> Iterator[type]:
    """The classes of this package that a class's public methods and attributes return."""
    members = [getattr(kind, name) for name in dir(kind) if not name.startswith("_")]
    methods = [getattr(each, "fget", None) or getattr(each, "func", each) for each in members]
    for method in filter(inspect.isfunction, methods):
        yield from parts(
            typing.get_type_hints(method, localns={"Result": types.Result}).get("return")
        )
    for name, hint in typing.get_type_hints(kind).items():
        if not name.startswith("_"):
            yield from parts(hint)


def parts(hint: object) -> Iterator[type]:
    for each in (hint, typing.get_origin(hint)):
        if isinstance(each, type) and each.__module__.startswith("nexo."):
            yield each
    for inner in typing.get_args(hint):
        yield from parts(inner)


def test_what_holds_a_connection_cannot_be_pickled(client: nexo.Client) -> None:
    queue, stream = client.queue("q").create(), client.stream("s").create()
    queue.push(1)
    stream.publish(2)
    held: list[Any] = [client, nexo.AsyncClient(), *queue.pop(), *stream.consume("g").fetch()]
    for one in held:
        with pytest.raises(TypeError, match="send their values, and connect in each process"):
            pickle.dumps(one)
    assert pickle.loads(pickle.dumps(held[-1].value)) == 2
