"""What people see of Kafka clients: dashboard, commands and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition

from nexo.cli import main
from nexo.model.names import name_of, text_of
from nexo.testing import Process, process
from tests.integration.admin_api import Api
from tests.kafka.test_groups import QUIET, fill, poll_until
from tests.timing import wait_until

COUNT = 40


@pytest.fixture(scope="module")
def served() -> Iterator[Process]:
    with process() as running:
        yield running


def members(url: str, topic: str, group: str) -> list[dict[str, object]]:
    found = CliRunner().invoke(main, ["stream", "members", topic, group, "--json", "--url", url])
    assert found.exit_code == 0, found.output
    return [json.loads(line) for line in found.stdout.splitlines()]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_shown_with_their_clients(served: Process, topic: str, protocol: str) -> None:
    url, api = served.url, Api(served.http_url)
    fill(url, topic, COUNT)
    shown = api.get("/stream/records", stream=topic, limit=COUNT)["records"]
    assert sorted(row["key"] for row in shown) == sorted(map(str, range(COUNT)))
    options: dict[str, object] = {"enable.auto.commit": False, "group.protocol": protocol, **QUIET}
    group = f"{topic} team"
    one = _joined(url, topic, "one", options)
    two = _joined(url, topic, "two", options)
    with closing(one), closing(two):
        poll_until([one, two], lambda: len(one.assignment()) == len(two.assignment()) == 2)
        owned = {name: sorted(at.partition for at in each.assignment())
                 for name, each in (("one", one), ("two", two))}  # fmt: skip
        rows = members(url, topic, group)
        assert {str(row["client_id"]): row["partitions"] for row in rows} == owned
        assert {row["host"] for row in rows} == {"127.0.0.1"}
        assert sum(int(str(row["lag"])) for row in rows) == COUNT

        (view,) = api.get("/stream/groups", stream=topic)
        clients = {row["client_id"]: row["partitions"] for row in view["kafka"]["members"]}
        assert (text_of(view["name"]), view["lag"], clients) == (group, COUNT, owned)
        assert view["kafka"]["assignor"]
        assert {each["owner"] for each in view["partitions"]} == set(view["consumers"])
        assert group in CliRunner().invoke(main, ["stream", "groups", topic, "--url", url]).output

        ends = one.get_watermark_offsets(TopicPartition(topic, owned["one"][0]), timeout=20)[1]
        one.commit(offsets=[TopicPartition(topic, owned["one"][0], ends)], asynchronous=False)
        (row,) = [row for row in members(url, topic, group) if row["client_id"] == "one"]
        lag = int(str(row["lag"])) + ends
        assert lag == sum(_end(one, topic, index) for index in owned["one"])
        listed = CliRunner().invoke(main, ["lag", topic, "--json", "--url", url])
        (lagging,) = [json.loads(line) for line in listed.stdout.splitlines()]
        assert (lagging["group"], lagging["lag"]) == (name_of(group), COUNT - ends)
        assert lagging["consumers"] == 2

        found = api.get("/connections", broker="stream", search="one")["connections"]
        assert {row["dialect"] for row in found} == {"kafka"}
        assert all(row["requests"] and row["bytes_in"] and row["bytes_out"] for row in found)

        def is_counted() -> bool:
            lines = api.request("GET", "/metrics").body.decode().splitlines()
            by_dialect = [line for line in lines if 'dialect="kafka"' in line]
            lags = [line for line in lines if line.startswith("nexo_group_lag_records")]
            return bool(by_dialect) and any(f'group="{name_of(group)}"' in line for line in lags)

        wait_until(is_counted, 30)


def _joined(url: str, topic: str, name: str, options: dict[str, object]) -> Consumer:
    given = {"bootstrap.servers": url.removeprefix("nexo://"), "group.id": f"{topic} team"}
    made = Consumer({**given, "auto.offset.reset": "earliest", "client.id": name, **options})
    made.subscribe([topic])
    return made


def _end(reader: Consumer, topic: str, partition: int) -> int:
    return int(reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)[1])
