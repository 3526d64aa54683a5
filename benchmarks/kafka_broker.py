"""A real Kafka, one node with KRaft, as a server under test. Maven fetches its jars once."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import Missing, binary
from tools import real_kafka

_JARS = Path(tempfile.gettempdir()) / f"nexo-bench-kafka-{real_kafka.VERSION}"
_HEAP = ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC")
"""As its own start script gives it."""
SYNCED = "log.flush.interval.messages=1\n"


def command(folder: Path, port: int, partitions: int, *, sync: bool) -> Sequence[str]:
    """What starts a broker whose topics are made on first use; ``sync`` flushes each batch."""
    java = [binary("java"), *_HEAP, "-cp", f"{_jars()}/*"]
    config = real_kafka.properties(folder, port)
    with config.open("a", encoding="utf-8") as file:
        file.write(f"num.partitions={partitions}\n" + (SYNCED if sync else ""))
    options = ["format", "--standalone", "-t", real_kafka.CLUSTER, "-c", str(config)]
    made = subprocess.run(
        [*java, "kafka.tools.StorageTool", *options], capture_output=True, check=False
    )
    if made.returncode:
        raise Missing(f"kafka could not format its folder: {made.stderr.decode()[-200:]}")
    return [*java, "kafka.Kafka", str(config)]


def _jars() -> Path:
    binary("mvn")
    _JARS.mkdir(exist_ok=True)
    try:
        return real_kafka.jars(_JARS)
    except subprocess.CalledProcessError:
        raise Missing("kafka's jars cannot be fetched: no Maven registry answers") from None
