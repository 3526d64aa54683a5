"""The leader lost with its disk, again and again, under load on all brokers (SPEC N1-N3, N5).

Twenty clients know both addresses and follow the leader by themselves. Five losses in short;
``SOAK=1`` loses a hundred leaders with a lease of 3 s and prints how long takeovers took.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path

import pytest
from msgspec import structs

import nexo
from nexo.testing import Process
from tests.crash.machine_load import MODES, PAIR, Load, Told, create, found
from tests.replicas import ready
from tests.timing import wait_until

SOAK = bool(os.environ.get("SOAK"))
LOSSES = int(os.environ.get("SOAK_LOSSES", "100" if SOAK else "5"))
LEASE_MS = 3_000 if SOAK else 1_000
REPLICATE_MS = 250
SNAPSHOT_MS = 500
IN_A_ROW = 4
"""After every so many losses the next one comes at once."""
LONGEST_WINDOW_MS = 10_000
"""Far more than is promised, as the machine may be busy; the figures are printed."""


class Losses:
    """Loses the leader, again and again, and notes when and how long that took."""

    def __init__(self, leader: Process, standby: Process, load: Load) -> None:
        self.leader, self.standby = leader, standby
        self.killed_s: list[float] = []
        self.took_s: list[float] = []
        self.by_themselves = 0
        """How often they changed roles although nothing was lost."""
        self.shipping_ms = 0
        """The longest that a leader needed to ship anything."""
        self._load = load

    def lose(self) -> None:
        wait_until(self._are_both_there, 60)
        leader, standby = self.leader, self.standby
        with nexo.Client(leader.url) as client:
            client.queue("later").push(len(self.killed_s), delay=1)
            rows = [row.replica.window_ms for row in structs.astuple(client.info())]
        self.shipping_ms = max(self.shipping_ms, *rows)
        self.killed_s.append(time.monotonic())
        leader.kill()
        self._load.since(time.monotonic())
        shutil.rmtree(leader.data_dir)
        in_a_row = len(self.killed_s) % IN_A_ROW == 0
        if in_a_row:  # it is prepared when the other has just taken over, which is lost at once
            leader.start()
        wait_until(lambda: self._load.first_s is not None, 60)
        assert self._load.first_s is not None
        if not in_a_row:  # otherwise both shared this machine meanwhile
            self.took_s.append(self._load.first_s - self.killed_s[-1])
            leader.start()
        self.leader, self.standby = standby, leader

    def _are_both_there(self) -> bool:
        """Whether one leads and knows the other, which is prepared to take over.

        They may have changed roles by themselves, if the disk stood still for a lease.
        """
        views = [ready(server).get("replica", {}) for server in (self.leader, self.standby)]
        if [view.get("role") for view in views] == ["standby", "leader"]:
            self.leader, self.standby = self.standby, self.leader
            self.by_themselves += 1
            return False
        return bool(views[0].get("standbys") and views[1].get("prepared"))

    def windows_ms(self, told_s: list[float]) -> list[float]:
        """How long before a loss what was lost had been acknowledged."""
        return [1000 * min(abs(at - told) for at in self.killed_s) for told in told_s]

    def __str__(self) -> str:
        took_s, losses = self.took_s, len(self.killed_s)
        p99_s = max(took_s) if len(took_s) < 50 else statistics.quantiles(took_s, n=100)[98]
        every_s = (self.killed_s[-1] - self.killed_s[0]) / max(1, losses - 1)
        return (
            f"{losses} losses at a lease of {LEASE_MS} ms, one in {every_s:.1f} s: takeover "
            f"p50 {statistics.median(took_s):.1f} s, p99 {p99_s:.1f} s of {len(took_s)}; "
            f"{self.by_themselves} more without a loss"
        )


@pytest.mark.timeout(4_000 if SOAK else 240)
def test_losing_the_leader_and_its_disk_loses_nothing_replicated(tmp_path: Path) -> None:
    servers = [_server(tmp_path / name) for name in ("one", "two")]
    load = Load(f"{servers[0].url},127.0.0.1:{servers[1].port}")
    losses = Losses(servers[0], servers[1], load)
    try:
        for server in servers:
            server.start()
        create(servers[0].url)
        _schedule(servers[0].url)
        load.start()
        for _ in range(LOSSES):
            losses.lose()
        load.written.set()
        wait_until(lambda: not any(load.unseen().values()), 60)
        load.end()
        print(f"\n{losses}")  # noqa: T201
        _check(load, found(losses.leader.url), losses)
        _check_schedule(losses.leader.url)
    finally:
        load.written.set()
        load.ended.set()
        for server in servers:
            server.close()


def _server(folder: Path) -> Process:
    store = folder.with_name("store")
    return Process(
        folder, replicate=f"file://{store}", replicate_lease_ms=LEASE_MS, dashboard=False,
        retained_persistence="replicated", store_snapshot_ms=SNAPSHOT_MS,
        replicate_ms=REPLICATE_MS, replicate_keep_ms=0,
    )  # fmt: skip


def _schedule(url: str) -> None:
    with nexo.Client(url) as client:
        later = client.queue("later").create(persistence="replicated")
        later.cron.set("every-minute", "* * * * *", "minute")


def _check_schedule(url: str) -> None:
    """Delayed jobs became due after the loss, and the schedule is there."""
    with nexo.Client(url) as client:
        later = client.queue("later")
        wait_until(lambda: len(later.peek(limit=10_000)) >= LOSSES, 60)
        values = [view.value for view in later.peek(limit=10_000)]
        assert [schedule.name for schedule in later.cron.list()] == ["every-minute"]
    assert sorted(value for value in values if value != "minute") == list(range(LOSSES))


def _check(load: Load, values: dict[str, set[object]], losses: Losses) -> None:
    for kind, told in load.told.items():
        assert told.values, f"no {kind} were written"
        twice = [number for number, times in told.numbers.items() if times > 1]
        assert not twice, f"numbers of {kind} given twice: {twice[:5]}"
    assert values[PAIR[0]] == values[PAIR[1]], "half a transaction"
    lost = {kind: _lost(kind, told, load, values) for kind, told in load.told.items()}
    lost["topics"] = []  # a client has only its last one
    for mode in dict.fromkeys(MODES.values()):
        kinds = [kind for kind in MODES if MODES[kind] == mode]
        count = sum(len(load.told[kind].values) for kind in kinds)
        windows_ms = losses.windows_ms([told_s for kind in kinds for told_s in lost[kind]])
        longest_ms = max(windows_ms, default=0)
        print(  # noqa: T201
            f"{mode}: {count:,} acknowledged, {len(windows_ms)} lost, acknowledged at most "
            f"{longest_ms:.0f} ms before the loss"
        )
        assert mode != "replicated" or not windows_ms, {kind: len(lost[kind]) for kind in kinds}
        assert longest_ms < LONGEST_WINDOW_MS
    _check_topics(load.told["topics"], values["topics"])
    again = sum(load.worked.values()) - len(load.worked)
    print(  # noqa: T201
        f"no offset, id or value twice, {len(values[PAIR[0]]):,} transactions whole; "
        f"{len(load.worked):,} jobs worked on ({again} again), {len(load.read):,} records read; "
        f"shipping took {losses.shipping_ms} ms at most, of replicate_ms {REPLICATE_MS}"
    )


def _lost(kind: str, told: Told, load: Load, values: dict[str, set[object]]) -> list[float]:
    """When those were acknowledged that are gone."""
    there: set[object] = {
        "jobs": set[object](load.worked), "pairs": values[PAIR[0]],
        "keys": set[object](told.values), "topics": set[object](told.values),
    }.get(kind) or values[kind]  # fmt: skip
    gone = told.values.keys() - there
    return [told.values[value] for value in gone] + told.lost_s


def _check_topics(told: Told, kept_values: set[object]) -> None:
    """Each client's retained value is the last one that it was told of, or a later one."""
    last = {at: int(turn) for at, turn in (value.split("-") for value in told.values)}
    kept = dict(str(value).split("-") for value in kept_values)
    behind = {at: turn for at, turn in last.items() if int(kept.get(at, -1)) < turn}
    assert not behind, f"retained messages lost: {behind}"


@pytest.mark.skipif(not SOAK, reason="writes gigabytes: set SOAK=1")
@pytest.mark.timeout(3_000)
def test_a_standby_joins_while_the_leader_works(tmp_path: Path) -> None:
    leader, standby = (_server(tmp_path / name) for name in ("one", "two"))
    joined_bytes = int(os.environ.get("SOAK_JOIN_MB", "2000")) * 1_000_000
    load = Load(f"{leader.url},127.0.0.1:{standby.port}")
    try:
        leader.start()
        create(leader.url)
        filled_s = time.monotonic()
        with nexo.Client(f"{leader.url}?timeout=60") as client:
            # Replicated, so that no more is written than the store takes.
            client.stream("bulk").create(persistence="replicated", retention={"max_bytes": 0})
            for _ in range(joined_bytes // 8_000_000):
                client.stream("bulk").publish_many([os.urandom(8_000)] * 1_000)
        load.start()
        began_s = time.monotonic()
        filled_s = began_s - filled_s
        standby.start()
        wait_until(lambda: ready(standby)["replica"]["prepared"], 2_000)
        wait_until(lambda: ready(standby)["replica"]["lag_ms"] == 0, 600)
        took_s = time.monotonic() - began_s
        size = sum(path.stat().st_size for path in standby.data_dir.rglob("*") if path.is_file())
        told = sum(len(told.values) for told in load.told.values())
    finally:
        load.written.set()
        load.ended.set()
        leader.close()
        standby.close()
        shutil.rmtree(tmp_path)  # it would be kept for some runs
    print(  # noqa: T201
        f"a standby joined {size / 1e9:.2f} GB in {took_s:.0f} s ({size / took_s / 1e6:.0f} MB/s) "
        f"while the leader acknowledged {told:,} writes; it had taken {filled_s:.0f} s to fill it"
    )
    assert told
