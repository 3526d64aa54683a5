"""``nexo stream``, ``tail``, ``lag`` and ``seek`` against a real server (SPEC K5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import nexo as package
from nexo.cli import main
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_ordered import Commit
from nexo.topics import Consumer
from nexo.xstreams import NexoStreamBroker


def nexo(url: str, *args: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(main, [*args, "--url", url], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def parsed(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_stream_from_birth_to_death(nexo_url: str) -> None:
    options = ("--partitions", "2", "--retention", "1d", "--retention-bytes", "1MiB")
    (created,) = parsed(nexo(nexo_url, "stream", "create", "events", *options, "--json"))
    assert created["options"]["retention_ms"] == 86_400_000
    assert created["options"]["retention_bytes"] == 1024**2
    assert len(created["partitions"]) == 2
    assert nexo(nexo_url, "stream", "publish", "events", "hi", "--key", "order_123").exit_code == 0
    (row,) = parsed(nexo(nexo_url, "stream", "list", "--json"))
    assert (row["name"], row["offsets"]) == ("events", 1)
    assert nexo(nexo_url, "stream", "list", "--names").output.split()[-1] == "events"
    updated = nexo(nexo_url, "stream", "update", "events", "--retention", "2h")
    assert "retention\t2h" in updated.output
    assert "cleanup\tdelete" in nexo(nexo_url, "stream", "info", "events").output
    assert "0 bytes freed" in nexo(nexo_url, "stream", "retain", "events").output
    assert nexo(nexo_url, "stream", "delete", "events", "--yes").output == "events deleted\n"
    assert "there are no streams" in nexo(nexo_url, "stream", "list").output


def test_records_survive_a_trip_through_a_file(
    nexo_url: str, client: package.Client, tmp_path: Path
) -> None:
    source = client.stream("a").create()
    source.publish({"n": 1}, key="k", headers={"h": "x"})
    source.publish("text")
    source.publish(b"\x00\xff")
    file = tmp_path / "records.jsonl"
    file.write_text(
        nexo(nexo_url, "tail", "a", "--from", "beginning", "--no-follow", "--json").output
    )
    client.stream("b").create()
    args = ("stream", "publish", "b", "--file", str(file), "--format", "records", "--json")
    assert parsed(nexo(nexo_url, *args)) == [{"stream": "b", "records": 3}]
    copied = client.stream("b").read()
    assert [(r.value, r.key, r.headers) for r in copied] == [
        ({"n": 1}, "k", {"h": "x"}), ("text", None, {}), (b"\x00\xff", None, {}),
    ]  # fmt: skip


def test_lines_of_standard_input_are_published(nexo_url: str, client: package.Client) -> None:
    lines = client.stream("lines").create()
    said = nexo(nexo_url, "stream", "publish", "lines", stdin="one\ntwo\n\nlast").output
    assert said == "4 records published\n"
    assert [record.value for record in lines.read()] == ["one", "two", "", "last"]


def test_json_lines_take_their_key_from_a_field(nexo_url: str, client: package.Client) -> None:
    orders = client.stream("orders").create(partitions=3)
    stdin = '{"id": "order_123", "n": 1}\n\n{"id": 7}\n'
    args = ("stream", "publish", "orders", "--format", "jsonl", "--key-field", "id")
    assert nexo(nexo_url, *args, stdin=stdin).exit_code == 0
    (first,) = [record for record in orders.read(2) if record.key == "order_123"]  # SPEC E2
    assert first.value == {"id": "order_123", "n": 1}
    assert sum(len(orders.read(partition)) for partition in range(3)) == 2


def test_a_bad_line_is_named_and_what_came_before_is_kept(
    nexo_url: str, client: package.Client
) -> None:
    stream = client.stream("s").create()
    args = ("stream", "publish", "s", "--format", "jsonl")
    result = nexo(nexo_url, *args, stdin="1\n2\nthree\n4\n")
    assert result.exit_code == 1
    assert "line 3: not JSON" in result.output
    assert "2 records were published" in result.output
    assert [record.value for record in stream.read()] == [1, 2]


@pytest.mark.parametrize(
    "bad",
    [
        '{"value": {"base64": "a"}}', '{"value": {"base64": 5}}', '{"value": 1, "headers": [1]}',
        '{"value": 1, "key": 5}',
    ],
)  # fmt: skip
def test_a_record_with_a_bad_field_is_named(
    nexo_url: str, client: package.Client, bad: str
) -> None:
    stream = client.stream("s").create()
    args = ("stream", "publish", "s", "--format", "records")
    result = nexo(nexo_url, *args, stdin=f'{{"value": "first"}}\n{bad}\n')
    assert result.exit_code == 1
    assert result.output.startswith("error[INVALID]: -: line 2: ")
    assert [record.value for record in stream.read()] == ["first"]


def test_many_lines_arrive_in_order(nexo_url: str, client: package.Client, tmp_path: Path) -> None:
    stream = client.stream("s").create()
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"{n}\n" for n in range(2_500)))
    nexo(nexo_url, "stream", "publish", "s", "--file", str(file))
    assert [record.value for record in stream.read()] == [str(n) for n in range(2_500)]


def test_read_shows_what_is_there_and_stops(nexo_url: str) -> None:
    nexo(nexo_url, "stream", "create", "s")
    for key, value in (("a", "1"), ("b", "2"), ("a", "3")):
        nexo(nexo_url, "stream", "publish", "s", value, "--key", key)
    rows = parsed(nexo(nexo_url, "stream", "read", "s", "--json"))
    assert [(row["offset"], row["value"]) for row in rows] == [(0, "1"), (1, "2"), (2, "3")]
    rows = parsed(nexo(nexo_url, "stream", "read", "s", "--from", "1", "--key", "a", "--json"))
    assert [row["value"] for row in rows] == ["3"]
    assert len(parsed(nexo(nexo_url, "stream", "read", "s", "--count", "1", "--json"))) == 1
    assert nexo(nexo_url, "stream", "read", "none").exit_code == 1


def test_tail_shows_the_last_records_of_each_partition(
    nexo_url: str, client: package.Client
) -> None:
    stream = client.stream("s").create(partitions=2)
    stream.publish_many(list(range(10)), keys=["a"] * 10)
    rows = parsed(nexo(nexo_url, "tail", "s", "-n", "3", "--no-follow", "--json"))
    assert [row["value"] for row in rows] == [7, 8, 9]
    rows = parsed(nexo(nexo_url, "tail", "s", "--from", "4", "--count", "2", "--json"))
    assert [row["value"] for row in rows] == [4, 5]
    assert nexo(nexo_url, "tail", "s", "--partition", "2", "--no-follow").exit_code == 1
    assert nexo(nexo_url, "tail", "s", "--key", "b", "--no-follow").output == ""


def test_tail_beyond_the_end_says_so(nexo_url: str, client: package.Client) -> None:
    """SPEC K5: nothing to print has a reason."""
    client.stream("s").create(partitions=2).publish_many(list(range(3)), keys=["a"] * 3)
    found = nexo(nexo_url, "tail", "s", "--from", "9", "--partition", "1", "--no-follow")
    assert (found.exit_code, found.stdout) == (0, "")
    assert found.stderr.startswith("offset 9 is outside partition 1 of stream 's'")


def test_numbers_too_large_are_refused_in_words(nexo_url: str) -> None:
    """SPEC F4, K5: no traceback, whichever command it is."""
    nexo(nexo_url, "stream", "create", "s")
    huge = "9" * 29
    assert nexo(nexo_url, "seek", "s", "g", huge).exit_code == 2
    assert "larger than any offset" in nexo(nexo_url, "seek", "s", "g", huge).stderr
    refused = nexo(nexo_url, "stream", "create", "t", "--partitions", huge)
    assert "must be a whole number from 1 to 1,024" in refused.stderr


def test_lag_and_seek(nexo_url: str, client: package.Client) -> None:
    stream = client.stream("s").create()
    stream.publish_many(list(range(10)))
    with stream.consume("g") as consumer:
        consumer.fetch().ack()
    assert parsed(nexo(nexo_url, "lag", "s", "g", "--json"))[0]["lag"] == 0
    assert "is 4 records behind" in nexo(nexo_url, "seek", "s", "g", "6").output
    (row,) = parsed(nexo(nexo_url, "lag", "--json"))
    assert (row["stream"], row["group"], row["kind"], row["lag"]) == ("s", "g", "shared", 4)
    assert nexo(nexo_url, "lag", "--over", "3").exit_code == 3
    assert nexo(nexo_url, "lag", "--over", "4").exit_code == 0
    assert parsed(nexo(nexo_url, "seek", "s", "g", "1h", "--json"))[0]["lag"] == 10
    assert parsed(nexo(nexo_url, "stream", "seek", "s", "g", "0:9", "--json"))[0]["lag"] == 1
    assert "10" in nexo(nexo_url, "seek", "s", "g", "2000-01-01").output
    assert parsed(nexo(nexo_url, "stream", "groups", "s", "--json"))[0]["name"] == "g"


def test_groups_of_every_kind_are_listed(nexo_url: str, client: package.Client) -> None:
    """SPEC K5: shared and ordered groups of one name are two groups."""
    client.stream("s").create(partitions=2).publish_many(list(range(10)))
    with client.stream("s").consume("shop", batch=4) as consumer:
        consumer.fetch().ack()
    client.stream("t").create().publish("elsewhere")
    with Consumer(["s", "t"], "shop", server=client):
        rows = parsed(nexo(nexo_url, "stream", "groups", "s", "--json"))
        assert [(row["name"], row["kind"], row["lag"]) for row in rows] == [
            ("shop", "shared", 6),
            ("shop", "ordered", 10),
        ]
        table = nexo(nexo_url, "stream", "groups", "s").output
        assert "shared" in table
        assert "ordered" in table
        listed = {row["name"]: row for row in parsed(nexo(nexo_url, "stream", "list", "--json"))}
        assert (listed["s"]["groups"], listed["t"]["groups"]) == (2, 1)
        assert "shop, shop (ordered)" in nexo(nexo_url, "stream", "info", "s").output
        (shown,) = parsed(nexo(nexo_url, "stream", "info", "s", "--json"))
        assert (shown["groups"], shown["ordered_groups"]) == (["shop"], ["shop"])
        assert [part["tiered_offset"] for part in shown["partitions"]] == [0, 0]
    with NexoStreamBroker(nexo_url) as broker:
        broker.create_group("x", "workers", "0")
    (row,) = parsed(nexo(nexo_url, "stream", "groups", "x", "--json"))
    assert (row["name"], row["kind"]) == ("workers", "xstreams")
    kinds = {row["stream"]: row["kind"] for row in parsed(nexo(nexo_url, "lag", "--json"))}
    assert kinds["x"] == "xstreams"


def test_ordered_groups_are_shown_and_moved_too(nexo_url: str, client: package.Client) -> None:
    """SPEC G5: they store the last offset processed, so -1 for the beginning."""
    stream = client.stream("s").create(partitions=2)
    stream.publish_many(list(range(10)), keys=["a"] * 10)
    (partition,) = {stream.publish("x", key="a").partition}
    commit = Commit(group="billing", offsets=[("s", partition, 4, "")])
    client.link(Broker.STREAM).call(Op.S_COMMIT, wire.pack(commit))
    (row,) = parsed(nexo(nexo_url, "lag", "s", "--json"))
    assert (row["group"], row["kind"], row["lag"]) == ("billing", "ordered", 6)
    for place, lag in (("beginning", 11), (f"{partition}:8", 3), ("end", 0), ("1h", 11)):
        (moved,) = parsed(nexo(nexo_url, "seek", "s", "billing", place, "--json"))
        assert moved["lag"] == lag, place
    refused = nexo(nexo_url, "seek", "s", "billing", "12")
    assert refused.exit_code == 1
    assert "outside partition 0 of stream 's'" in refused.stderr
    for args in (("seek", "s", "billing", "2:0"), ("tail", "s", "--from", "2:0", "--no-follow")):
        refused = nexo(nexo_url, *args)
        assert "partition 2 does not exist: there are 2, from 0" in refused.stderr
    assert stream.groups() == []


def test_tail_begins_at_a_time(nexo_url: str, client: package.Client) -> None:
    client.stream("s").create().publish_many(["a", "b"])
    rows = parsed(nexo(nexo_url, "tail", "s", "--from", "1h", "--no-follow", "--json"))
    assert [row["value"] for row in rows] == ["a", "b"]
    later = "2999-01-01T00:00"
    assert nexo(nexo_url, "tail", "s", "--from", later, "--no-follow").output == ""


@pytest.mark.parametrize("place", ["somewhere", "-1", "1:x", "99d99"])
def test_a_place_that_makes_no_sense_is_wrong_usage(nexo_url: str, place: str) -> None:
    assert nexo(nexo_url, "seek", "s", "g", "--", place).exit_code == 2


def test_an_unknown_stream_or_group_is_one_line(nexo_url: str, client: package.Client) -> None:
    client.stream("s").create()
    for args in (("seek", "no", "g", "end"), ("lag", "s", "no"), ("tail", "no"), ("lag", "no")):
        result = nexo(nexo_url, *args)
        assert (result.exit_code, result.output.count("\n")) == (1, 1), result.output
        assert "error[NOT_FOUND]" in result.output


def test_parked_records_are_listed_replayed_and_deleted(
    nexo_url: str, client: package.Client
) -> None:
    stream = client.stream("s").create()
    stream.publish_many(["a", "b"])
    with stream.consume("g", max_deliveries=1) as consumer:
        for record in consumer.fetch():
            record.nack(reason="broken")

    def parked(verb: str, *args: str) -> Result:
        return nexo(nexo_url, "stream", "parked", verb, "s", "g", *args)

    rows = parsed(parked("list", "--json"))
    assert [(row["value"], row["reason"]) for row in rows] == [("b", "broken"), ("a", "broken")]
    assert [row["value"] for row in parsed(parked("list", "--offset", "1", "--json"))] == ["a"]
    assert parked("replay").exit_code == 2
    assert "not parked: 0:9" in parked("replay", "0:9").output
    assert "1 records" in parked("replay", "0:0").output
    assert parsed(parked("delete", "0:1", "--json")) == [{"deleted": 1}]
    assert "nothing is parked" in parked("list").output
    assert parsed(parked("purge", "--yes", "--json")) == [{"deleted": 0}]
    assert [record.value for record in stream.read()] == ["a", "b"]


def test_compaction_and_the_newest_of_a_key(nexo_url: str, client: package.Client) -> None:
    nexo(nexo_url, "stream", "create", "profiles", "--cleanup", "compact")
    for value in ("old", "new"):
        nexo(nexo_url, "stream", "publish", "profiles", value, "--key", "u1")
    asked = nexo(nexo_url, "stream", "compact", "profiles", stdin="n\n")
    assert (asked.exit_code, "newest record" in asked.output) == (1, True)
    assert len(client.stream("profiles").read()) == 2
    assert "freed" in nexo(nexo_url, "stream", "compact", "profiles", "--yes").output
    nexo(nexo_url, "stream", "create", "plain")
    refused = nexo(nexo_url, "stream", "compact", "plain", "--yes")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error[INVALID_OPTION]: stream 'plain' keeps")
    assert parsed(nexo(nexo_url, "stream", "get", "profiles", "u1", "--json"))[0]["value"] == "new"
    absent = nexo(nexo_url, "stream", "get", "profiles", "u2")
    assert (absent.exit_code, absent.stdout) == (1, "")
    assert "no record of stream 'profiles' has the key 'u2'" in absent.stderr
