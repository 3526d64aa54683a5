"""What the dashboard knows of many streams, groups and queues, and of jobs in work (SPEC K3)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

import nexo
from nexo.cli import main
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_ordered import Commit
from nexo.testing import Process, process
from tests.integration.admin_api import Api
from tests.timing import wait_until

STREAMS = 300
LAST = f"many/{STREAMS - 1:04}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with process(tmp_path_factory.mktemp("survey") / "nexo") as server:
        asyncio.run(fill(server.url))
        Api(server.http_url).wait_ready()
        yield server


async def fill(url: str) -> None:
    """Many idle streams and queues; trouble is with the last ones made."""
    async with nexo.AsyncClient(url) as client:
        for number in range(STREAMS):
            await client.stream(f"many/{number:04}").create()
            await client.queue(f"many/{number:04}").create(max_retries=0)
        stream = client.stream(LAST)
        await stream.publish_many(list(range(50)))
        async with stream.consume("careful", max_deliveries=1, batch=2) as consumer:
            for record in await consumer.fetch():
                await record.nack(reason="broken")
        commit = Commit(group="billing", offsets=[(LAST, 0, 9, "")])
        await client.link(Broker.STREAM).call(Op.S_COMMIT, wire.pack(commit))
        queue = client.queue(LAST)
        await queue.push_many(["bad", "good", "good"])
        (job,) = await queue.pop(1)
        await job.nack("no")


@pytest.fixture
def api(running: Process) -> Api:
    return Api(running.http_url)


def test_groups_of_any_stream_and_kind_are_ranked_by_lag(api: Api) -> None:
    groups: Any = wait_until(lambda: len(seen := api.get("/overview")["groups"]) > 1 and seen)
    assert [(row["stream"], row["name"], row["kind"], row["lag"]) for row in groups] == [
        (LAST, "careful", "shared", 48),
        (LAST, "billing", "ordered", 40),
    ]
    (stream,) = api.get("/stream/list", sort="lag", limit=1)["streams"]
    assert (stream["name"], stream["lag"]) == (LAST, 88)


def test_alerts_reach_the_last_of_many(api: Api) -> None:
    overview = wait_until(lambda: (seen := api.get("/overview"))["alerts_total"] > 1 and seen)
    found = {(alert["kind"], alert["subject"]) for alert in overview["alerts"]}
    assert found == {("dead-letters", LAST), ("parked", LAST)}
    assert overview["alerts_total"] == 2


def test_queues_are_paged_searched_and_ranked(api: Api) -> None:
    page = api.get("/queue/list", offset=STREAMS - 2, limit=50)
    names = [row["info"]["name"] for row in page["queues"]]
    assert (names, page["total"]) == ([f"many/{STREAMS - 2:04}", LAST], STREAMS)
    assert api.get("/queue/list", search="MANY/029")["total"] == 10

    def most_dead() -> str:
        return str(api.get("/queue/list", sort="dead", limit=1)["queues"][0]["info"]["name"])

    assert wait_until(lambda: most_dead() == LAST)


def test_jobs_in_work_show_who_holds_them(api: Api, running: Process) -> None:
    with nexo.connect(running.url, client="worker-7") as sdk:
        (job,) = sdk.queue(LAST).pop(1, lease=60)
        page = api.get("/queue/jobs", queue=LAST, state="working")
        (row,) = page["jobs"]
        assert (row["id"], row["holder"], page["total"]) == (job.id, "worker-7", 1)
        assert row["lease_ms"] == 60_000
        assert row["expires_ms"] > time.time() * 1000
        assert row["value"]["text"] == "good"
        job.ack()
    assert api.get("/queue/jobs", queue=LAST, state="working")["jobs"] == []


def test_the_commands_see_them_all_too(running: Process) -> None:  # SPEC K5
    def run(*args: str) -> list[dict[str, Any]]:
        result = CliRunner().invoke(main, [*args, "--json", "--url", running.url])
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.output.splitlines()]

    rows = run("lag", "--limit", "2")
    assert [(row["group"], row["kind"], row["lag"]) for row in rows] == [
        ("careful", "shared", 48),
        ("billing", "ordered", 40),
    ]
    (look,) = run("top", "--once", "--interval", "0.05")
    assert [row["group"] for row in look["groups"][:2]] == ["careful", "billing"]
    assert look["queues"][0]["queue"] == LAST


def test_topics_in_use_are_shown_though_nobody_listens(api: Api, running: Process) -> None:
    with nexo.connect(running.url) as sdk:
        sdk.pubsub.publish_many("plant/press/7", [1, 2, 3])
        sdk.pubsub.publish("plant/kept", 1, retain=True)
        with sdk.pubsub.subscribe("plant/+/alarm"):
            rows = {row["topic"]: row for row in api.get("/pubsub/topics")["topics"]}
    assert rows["plant/press/7"]["messages"] == 3
    assert rows["plant/press/7"]["retained_bytes"] is None
    assert (rows["plant/kept"]["messages"], rows["plant/kept"]["retained_bytes"] > 0) == (1, True)
    assert rows["plant/+/alarm"]["messages"] is None
