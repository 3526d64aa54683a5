"""Runs a real Kafka on 127.0.0.1, to compare answers: ``python tools/real_kafka.py FOLDER [PORT]``.

It needs Java 17 and Maven, which fetches the jars once; the broker is also its own controller, and
keeps everything in FOLDER. It ends with this program.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

VERSION = "4.3.1"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId>
      <version>{VERSION}</version></dependency>
  </dependencies>
</project>
"""
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"


def jars(folder: Path) -> Path:
    """The folder with Kafka's jars; fetched unless they are there."""
    libs = folder / "libs"
    if not libs.is_dir():
        (folder / "pom.xml").write_text(_POM)
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={libs}"]
        subprocess.run(["mvn", "-q", *copy], cwd=folder, check=True)
    return libs


def properties(folder: Path, port: int) -> Path:
    """The configuration of one node with everything in ``folder``."""
    file = folder / "server.properties"
    found = {
        "process.roles": "broker,controller",
        "node.id": 0,
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{port + 1}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": folder / "data",
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "group.initial.rebalance.delay.ms": 0,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in found.items()))
    return file


def main(folder: Path, port: int) -> int:
    """Format the data once, then run until killed."""
    folder.mkdir(parents=True, exist_ok=True)
    java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{jars(folder)}/*"]
    config = properties(folder, port)
    if not (folder / "data").exists():
        options = ["format", "--standalone", "-t", CLUSTER, "-c", str(config)]
        subprocess.run([*java, "kafka.tools.StorageTool", *options], check=True)
    return subprocess.call([*java, "kafka.Kafka", str(config)])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 9092))
