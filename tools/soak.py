"""Faults for long: ``tools/soak.py [--minutes N] [--seed N]`` prints one table, zero lost.

Real servers are killed, stopped and frozen under load until each fault has its share of the
time or its full count; then the long forms of the crash and property tests run, and every
decoder is fuzzed. The same seed gives the same loads, faults and mutations in the same order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.crash.faults import (  # noqa: E402 - after the path is set
    Fault,
    FreezeOneBroker,
    KillEverything,
    KillOneBroker,
    Row,
    StopEverything,
    inflict,
)

LIVES = 20
"""Faults on one data folder, before everything in it is checked."""

FAULTS: list[tuple[Fault, int, float]] = [
    (KillEverything(), 200, 0.20),
    (KillOneBroker(), 800, 0.40),
    (StopEverything(), 40, 0.05),
    (FreezeOneBroker(), 40, 0.05),
]
"""Each with its full count (of one broker, a quarter hits each) and at most its share of time."""

SUITES = {
    "kill -9, groups and transactions": ["tests/crash/test_queue_kill.py",
                                         "tests/crash/test_stream_kill.py",
                                         "tests/crash/test_topics_kill.py",
                                         "tests/crash/test_stream_exactly_once.py",
                                         "tests/integration/test_xstreams_crash.py"],
    "power loss (simulated)": ["tests/crash/test_storage_power_loss.py",
                               "tests/crash/test_windows_power_loss.py",
                               "tests/crash/test_stream_offsets.py",
                               "tests/crash/test_stream_power_loss.py",
                               "tests/crash/test_queue_power_loss.py"],
    "torn tails, bit flips": ["tests/crash/test_storage_bytes.py",
                              "tests/crash/test_stream_tail.py",
                              "tests/crash/test_flips.py",
                              "tests/crash/test_flipped_folder.py"],
    "planned restarts under load": ["tests/crash/test_restarts.py"],
    "machine lost, standby takes over": ["tests/crash/test_machine_loss.py"],
    "leader paused or cut, store at fault": ["tests/integration/test_replica.py",
                                             "tests/integration/test_replica_s3.py",
                                             "tests/integration/test_replica_lake.py",
                                             "tests/spark/test_takeover.py",
                                             "tests/unit/replication"],
    "strangers of every kind": ["tests/attack"],
    "types of the docs": ["tests/integration/test_docs_types.py"],
    "disk full, failed sync": ["tests/crash/test_disk.py"],
    "clock set by 1 h": ["tests/crash/test_clock.py"],
    "consumers: FIN, RST, SIGSTOP": ["tests/crash/test_peers.py"],
    "connections, descriptors, names": ["tests/integration/test_limits.py"],
    "a subscriber that never reads": ["tests/integration/test_pubsub_crash.py"],
    "Spark killed, two pipelines": ["tests/spark/test_exactly_once.py",
                                    "tests/spark/test_kills.py"],
    "Kafka clients, rebalances": [
        "tests/crash/test_kafka_storm.py", "tests/kafka/test_java.py",
        "tests/kafka/test_streams.py",
    ],
    "Debezium to Iceberg": ["tests/spark/test_debezium.py"],
}  # fmt: skip
"""The long forms of tests; their runs are the tests passed."""

FUZZ_SHARE = 0.15


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    fault: str
    broker: str
    runs: int
    operations: int
    lost: int
    duplicated: int
    errors: int


def main() -> int:
    """Entry point."""
    options = _options()
    logging.getLogger("nexo.client").setLevel(logging.ERROR)  # lost connections are the point here
    began = time.monotonic()
    lines: list[Line] = []
    stopped = False
    try:
        for found in _rows(options):
            lines += found
            if options.json:
                options.json.write_text(json.dumps([asdict(line) for line in lines], indent=2))
    except KeyboardInterrupt:
        stopped = True
        print("stopped: the table has the rows that were finished")
    _print(lines, options.seed, time.monotonic() - began)
    return int(stopped or any(line.lost or line.duplicated or line.errors for line in lines))


def _rows(options: argparse.Namespace) -> Iterator[list[Line]]:
    seconds = options.minutes * 60
    for fault, most, share in FAULTS:
        if options.only in fault.name:
            yield _faults(fault, most, share * seconds, options.seed)
    for name, paths in SUITES.items():
        if options.only in name:
            yield [_suite(name, paths, 0.1 * seconds)]
    if options.only in "fuzzed decoders":
        yield [_fuzz(FUZZ_SHARE * seconds, options.seed)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=55)
    parser.add_argument("--seed", type=int, default=20_261_115)
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    parser.add_argument("--json", type=Path, help="write the table here too")
    return parser.parse_args()


# -- real processes --------------------------------------------------------------------


def _faults(fault: Fault, most: int, seconds: float, seed: int) -> list[Line]:
    rows: list[list[Row]] = []
    end = time.monotonic() + seconds
    while len(rows) * LIVES < most and (not rows or time.monotonic() < end):
        with tempfile.TemporaryDirectory(prefix="nexo-soak-") as folder:
            found = asyncio.run(inflict(fault, Path(folder), seed + len(rows), LIVES))
        rows.append(found)
        clean = all(row.clean for row in found)
        print(f"{fault.name}: {len(rows) * LIVES} runs, {'clean' if clean else found}", flush=True)
    return [_summed(same) for same in zip(*rows, strict=True)]


def _summed(rows: tuple[Row, ...]) -> Line:
    found = [asdict(row.findings) for row in rows]
    total = {name: sum(each[name] for each in found) for name in found[0]}
    lost, duplicated = total.pop("lost"), total.pop("duplicated")
    return Line(
        fault=rows[0].fault,
        broker=rows[0].broker,
        runs=sum(row.runs for row in rows),
        operations=sum(row.operations for row in rows),
        lost=lost,
        duplicated=duplicated,
        errors=sum(total.values()),
    )


# -- tests and fuzzing -------------------------------------------------------------------


def _suite(name: str, paths: list[str], seconds: float) -> Line:
    there = [path for path in paths if (ROOT / path).exists()]
    environ = os.environ | {"SOAK": "1"} if seconds >= 120 else dict(os.environ)
    command = [sys.executable, "-m", "pytest", "-q", "--timeout", "1800", *there]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=environ, check=False
    )
    passed = _count(done.stdout, "passed")
    failed = _count(done.stdout, "failed") + _count(done.stdout, "error")
    if done.returncode:
        print(done.stdout[-4_000:], flush=True)
    print(f"{name}: {passed} tests passed, {failed} failed", flush=True)
    return Line(name, "all", passed, 0, 0, 0, failed or int(done.returncode not in (0, 5)))


def _count(text: str, word: str) -> int:
    found = re.search(rf"(\d+) {word}", text.splitlines()[-1] if text else "")
    return int(found[1]) if found else 0


def _fuzz(seconds: float, seed: int) -> Line:
    from tests.property.fuzz_targets import every_target  # noqa: PLC0415 - only when it runs

    each = max(1.0, seconds / len(every_target()))
    command = [sys.executable, "tools/fuzz.py", "--seconds", str(each), "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    rows = re.findall(r"^(.{18}) +([\d,]+) +\d* +(\w+)", done.stdout, re.MULTILINE)
    cases = sum(int(count.replace(",", "")) for _, count, _ in rows)
    print(done.stdout, flush=True)
    return Line("fuzzed decoders", "all", len(rows), cases, 0, 0, done.returncode)


def _print(lines: list[Line], seed: int, took_s: float) -> None:
    print(f"\nsoak of {took_s / 60:.0f} minutes on {time.strftime('%Y-%m-%d')}, seed {seed}\n")
    print("| fault | broker | runs | operations | lost | duplicated | errors |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for line in lines:
        counts = [line.runs, line.operations, line.lost, line.duplicated, line.errors]
        print(f"| {line.fault} | {line.broker} | " + " | ".join(f"{n:,}" for n in counts) + " |")


if __name__ == "__main__":
    sys.exit(main())
