"""``nexo top`` and ``nexo bench`` against a real server (SPEC K5)."""

from __future__ import annotations

import json

from click.testing import CliRunner

import nexo
from nexo.cli import main

BROKERS = ["store", "pubsub", "queue", "stream"]


def run(url: str, *args: str) -> str:
    result = CliRunner().invoke(main, [*args, "--url", url])
    assert result.exit_code == 0, result.output
    return result.output


def test_top_shows_every_broker(nexo_url: str, client: nexo.Client) -> None:
    client.queue("mails").create().push("x")
    client.stream("events").create().publish("x")
    text = run(nexo_url, "top", "--once", "--interval", "0.05")
    assert all(word in text for word in [*BROKERS, "mails", "events", "1 waiting"])


def test_top_as_json_is_one_object_per_look(nexo_url: str) -> None:
    lines = run(nexo_url, "top", "--count", "2", "--interval", "0.05", "--json").splitlines()
    looks = [json.loads(line) for line in lines]
    assert [[row["broker"] for row in look["brokers"]] for look in looks] == [BROKERS, BROKERS]
    assert all(row["up"] for look in looks for row in look["brokers"])


def test_bench_measures_each_broker_and_leaves_nothing(nexo_url: str, client: nexo.Client) -> None:
    lines = run(nexo_url, "bench", "--seconds", "0.02", "--json").splitlines()
    rows = {row["work"]: row["per_s"] for row in map(json.loads, lines)}
    assert len(rows) == 8
    assert all(rate > 0 for rate in rows.values()), rows
    assert client.queues() == []
    assert client.info().stream.streams == 0
    assert client.info().store.keys == 0
