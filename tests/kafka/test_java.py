"""Kafka's own Java client and Connect against the stream broker (SPEC L2).

``SOAK=1`` also runs the client with groups whose partitions the broker assigns.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.kafka.jars import CLIENT, command, connect_worker, properties
from tests.kafka.ledger import shows
from tests.timing import wait_until

PROTOCOLS = ["classic", "consumer"] if os.environ.get("SOAK") else ["classic"]
"""Of groups; the newer one (KIP-848) takes its time."""
LINES = [f"line {number}" for number in range(1_000)]


@shows(
    "Java kafka-clients",
    "produce (idempotent, each compression, keys, headers, null), groups, transactions, time, "
    "administration",
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_java_client_does_what_it_does_with_kafka(
    bootstrap: str, topic: str, protocol: str
) -> None:
    found = subprocess.run(
        command(CLIENT, "JavaClient.java", bootstrap, topic, protocol),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    seen = json.loads(found.stdout.splitlines()[-1])
    kinds = ("none", "gzip", "snappy", "lz4", "zstd")
    assert seen.pop("records") == [
        [2 * at + null, "k", None if null else kind, 1_000 * (2 * at + null + 1),
         {"h": kind, "n": None}]
        for at, kind in enumerate(kinds) for null in (0, 1)
    ]  # fmt: skip
    assert seen == {
        "partitions": 2, "listed": True, "nodes": 1, "offsets": list(range(10)),
        "shared": 2, "members": ["one", "two"], "state": "Stable",
        "committed": ["4noted", "4noted"], "resumed": 7, "byTime": 2,
        "ends": {"first": 0, "last": 10},
        "txOffsets": 15, "txOutputs": 15, "txAll": 15, "fenced": True,
        "earliest": 3, "greatest": 9, "retention": "3600000", "groups": True, "altered": 9,
        "deleted": True,
    }  # fmt: skip


@shows("Kafka Connect", "distributed worker (its topics and group), file source to file sink")
def test_connect_copies_a_file_through_a_topic(bootstrap: str, topic: str, tmp_path: Path) -> None:
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{line}\n" for line in LINES))
    worker = properties(
        "coming-from-kafka.md", 0, bootstrap_servers=bootstrap, group_id=f"{topic}-connect",
        config_storage_topic=f"{topic}-configs", offset_storage_topic=f"{topic}-offsets",
        status_storage_topic=f"{topic}-status", plugin_discovery="service_load",
    )  # fmt: skip
    reads = properties("coming-from-kafka.md", 1, file=source, topic=topic)
    writes = properties("coming-from-kafka.md", 2, file=sink, topics=topic)

    with connect_worker(tmp_path, worker, reads, writes) as log:
        wait_until(lambda: sink.exists() and sink.read_text().count("\n") >= len(LINES), 90)
    assert sink.read_text().splitlines() == LINES, log.read_text()[-3000:]
