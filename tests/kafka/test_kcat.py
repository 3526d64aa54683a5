"""kcat against the stream broker (SPEC L2)."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.kafka.ledger import program, shows


@pytest.fixture(scope="module")
def kcat() -> str:
    return program("kcat")


def run(*command: str, given: str = "") -> str:
    found = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=60, check=True
    )
    return found.stdout


@shows("kcat", "produce and read: keys, headers, null, each compression")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_messages_come_back(kcat: str, bootstrap: str, topic: str, codec: str) -> None:
    given = "k1:v1\nk2:\n"
    run(
        kcat, "-b", bootstrap, "-t", topic, "-P", "-K:", "-Z", "-z", codec, "-H", "a=1", given=given
    )
    read = run(kcat, "-b", bootstrap, "-t", topic, "-C", "-o", "beginning", "-e", "-q", "-J")
    rows = [json.loads(line) for line in read.splitlines()]
    assert [(row["key"], row["payload"], row["offset"]) for row in rows] == [
        ("k1", "v1", 0),
        ("k2", None, 1),
    ]
    assert rows[0]["headers"] == ["a", "1"]


@shows("kcat", "groups, metadata, offsets by time")
def test_a_group_reads_and_metadata_is_listed(kcat: str, bootstrap: str, topic: str) -> None:
    run(kcat, "-b", bootstrap, "-t", topic, "-P", given="a\nb\n")
    options = ("-X", "auto.offset.reset=earliest", "-c", "2", "-q")
    assert run(kcat, "-b", bootstrap, *options, "-G", f"{topic} group", topic) == "a\nb\n"
    listed = json.loads(run(kcat, "-b", bootstrap, "-L", "-J"))
    assert topic in {row["topic"] for row in listed["topics"]}
    assert run(kcat, "-b", bootstrap, "-Q", "-t", f"{topic}:0:1").strip().endswith("offset 0")
