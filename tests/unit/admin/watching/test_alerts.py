"""The alert rules, second by second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from nexo.admin.watching.alerts import (
    Alert,
    gathered,
    of_broker,
    of_debts,
    of_group,
    of_pipeline,
    of_queue,
)
from nexo.admin.watching.watch import BrokerWatch, GroupWatch, QueueWatch
from nexo.lake.progress import STALE_MS, PipelineProgress, StreamProgress, TableDebt, Tracker
from nexo.model import Broker
from nexo.model.queue import QueueInfo
from nexo.model.stream import GroupSeen

MIB = 1024**2
IDLE = QueueInfo("jobs", {}, 0, False, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def queue_after(seconds: int, **first: Any) -> QueueWatch:
    """A queue whose counts stay the same for some seconds."""
    info = replace(IDLE, **first)
    watch = QueueWatch(info)
    for second in range(seconds):
        watch.seen(info, float(second))
    return watch


def group_with(lags: list[int], consumers: int = 1, parked: int = 0) -> GroupWatch:
    watch = GroupWatch(group(lags[0], 0, consumers, parked))
    for second, lag in enumerate(lags):
        watch.seen(group(lag, second, consumers, parked), float(second))
    return watch


def group(lag: int, published: int, consumers: int, parked: int) -> GroupSeen:
    finished = published + 10_000 - lag
    return GroupSeen("orders", "g", "ordered", lag, 0, parked, consumers, finished)


def broker(broker: Broker, **status: Any) -> BrokerWatch:
    watch = BrokerWatch(broker)
    watch.answered(status, 0.001, 1_000)
    return watch


def alerts(
    brokers: list[BrokerWatch], queues: list[QueueWatch], groups: list[GroupWatch], reserve: int
) -> list[Alert]:
    found = [alert for watch in brokers for alert in of_broker(watch, reserve, 2_000)]
    found += [alert for queue in queues for alert in of_queue(queue)]
    return found + [alert for group in groups for alert in of_group(group)]


def kinds(found: list[Alert]) -> list[str]:
    return [alert.kind for alert in found]


def test_brokers_on_one_disk_say_once_that_it_is_full() -> None:
    full = {"full": True, "free_bytes": 0}
    watches = [broker(each, disk=full) for each in (Broker.QUEUE, Broker.STREAM)]
    (alert,) = gathered(alerts(watches, [], [], MIB))
    assert (alert.kind, alert.broker) == ("disk-full", "queue")
    assert alert.message == "the disk is full: writes are refused (and for stream)"


def test_a_restart_is_told_for_an_hour() -> None:
    watch = broker(Broker.QUEUE, process={"pid": 1})
    watch.answered({"process": {"pid": 1}}, 0.001, 2_000)
    assert list(of_broker(watch, MIB, 2_000)) == []
    watch.silent("gone", 3_000)
    watch.answered({"process": {"pid": 2}}, 0.001, 4_000)
    (alert,) = of_broker(watch, MIB, 124_000)
    assert (alert.kind, "started again 2 min ago" in alert.message) == ("restarted", True)
    assert list(of_broker(watch, MIB, 4_000 + 3_600_000)) == []


def test_a_quiet_server_has_none() -> None:
    assert alerts([broker(Broker.STORE)], [queue_after(60)], [group_with([0] * 60)], MIB) == []


def test_a_silent_broker_is_critical() -> None:
    down = broker(Broker.STREAM)
    down.silent("no answer in time", 2_000)
    found = alerts([down], [queue_after(1, dead=2)], [], MIB)
    assert [(alert.level, alert.kind) for alert in found] == [
        ("critical", "down"),
        ("warning", "dead-letters"),
    ]


def test_disk_trouble_is_told_by_its_worst() -> None:
    free = {"free_bytes": 3 * MIB, "full": False, "failed": None}
    assert kinds(alerts([broker(Broker.QUEUE, disk=free)], [], [], MIB)) == ["disk-low"]
    full = free | {"full": True}
    assert kinds(alerts([broker(Broker.QUEUE, disk=full)], [], [], MIB)) == ["disk-full"]
    failed = full | {"failed": "EIO"}
    assert kinds(alerts([broker(Broker.QUEUE, disk=failed)], [], [], MIB)) == ["sync-failed"]


def test_jobs_that_nobody_takes_for_a_minute_are_stuck() -> None:
    assert alerts([], [queue_after(59, waiting=3)], [], MIB) == []
    (alert,) = alerts([], [queue_after(60, waiting=3)], [], MIB)
    assert (alert.kind, alert.subject) == ("stuck", "jobs")
    assert alerts([], [queue_after(60, waiting=3, paused=True)], [], MIB) == []


def test_a_lag_that_grows_for_a_minute_is_told() -> None:
    growing = group_with([n * 100 for n in range(60)])
    assert kinds(alerts([], [], [growing], MIB)) == ["lag"]
    steady = group_with([50_000 + n for n in range(60)])
    assert "lag" not in kinds(alerts([], [], [steady], MIB))


def test_a_group_seen_now_and_then_is_judged_by_the_whole_minute() -> None:
    rare = GroupWatch(group(0, 0, 1, 0))
    for second in range(0, 61, 20):  # as one of very many
        rare.seen(group(second * 100, second, 1, 0), float(second))
    assert kinds(alerts([], [], [rare], MIB)) == ["lag"]


def test_consumers_that_finish_nothing_are_stuck() -> None:
    still = [5 + second for second in range(60)]  # all that is published stays
    assert kinds(alerts([], [], [group_with(still)], MIB)) == ["stuck"]
    assert alerts([], [], [group_with(still, consumers=0)], MIB) == []


def test_parked_records_and_drops_are_told() -> None:
    assert kinds(alerts([], [], [group_with([0], parked=2)], MIB)) == ["parked"]
    pubsub = broker(Broker.PUBSUB, dropped=0, slow=[{"client": "phone"}])
    pubsub.answered({"dropped": 5, "slow": [{"client": "phone"}]}, 0.001, 2_000)
    (alert,) = alerts([pubsub], [], [], MIB)
    assert alert.kind == "drops"
    assert "phone" in alert.message


def test_files_that_pile_up_faster_than_they_are_merged_are_told() -> None:
    tracker = Tracker()
    tracker.pipeline.updated_ms = 1_000
    debt = TableDebt(table="nexo.orders", small_files=900, small_bytes=1, behind_s=7_200)

    def found(behind_s: float) -> list[str]:
        tracker.owes(structs.replace(debt, behind_s=behind_s))
        return kinds(list(of_debts(tracker.pipeline, 2_000)))

    assert [found(seconds) for seconds in (7_200, 7_100, 7_300, 3_599, 3_600)] == [
        [], [], ["merge-behind"], [], []
    ]  # fmt: skip
    assert found(3_700) == ["merge-behind"]
    assert list(of_debts(tracker.pipeline, 1_000 + STALE_MS)) == []


def test_pipelines_that_fail_or_fall_silent_are_told() -> None:
    well = PipelineProgress(id="a", host="h", pid=1, started_ms=0, updated_ms=1_000)
    assert list(of_pipeline(well, 2_000)) == []
    assert kinds(list(of_pipeline(well, 1_000 + STALE_MS))) == ["pipeline-silent"]
    well.error, well.streams = "disk gone", [StreamProgress(stream="orders", error="disk gone")]
    (alert,) = of_pipeline(well, 2_000)
    assert (alert.kind, "orders" in alert.message) == ("pipeline-failed", True)
    well.error = ""  # P10: the others go on, but this one is not taken
    (alert,) = of_pipeline(well, 2_000)
    assert (alert.kind, alert.subject) == ("pipeline-stream", "orders")
    assert alert.message == "the pipeline cannot take it: disk gone"
    well.error, well.running = "", False
    assert list(of_pipeline(well, 1_000 + STALE_MS)) == []


def test_what_damaged_files_cost_is_told() -> None:
    lost = {"count": 4, "first": ["offsets 3 to 5: damaged", "offset 9: damaged"]}
    for which in (Broker.PUBSUB, Broker.QUEUE, Broker.STREAM):
        (alert,) = alerts([broker(which, lost=lost)], [], [], MIB)
        assert (alert.level, alert.kind, alert.broker) == ("critical", "lost", which.label)
        assert "4 places" in alert.message
        assert "offsets 3 to 5" in alert.message
    (alert,) = alerts([], [queue_after(1, losses=["offset 7: damaged"])], [], MIB)
    assert (alert.kind, alert.subject) == ("lost", "jobs")


def test_many_of_a_kind_are_one_line_that_counts_them() -> None:
    """U7: with 10,000 queues, the overview showed 50 alerts and counted another number."""
    dead = [Alert("warning", "dead-letters", "queue", f"q{n}", "1 dead letter") for n in range(7)]
    apart = [Alert("warning", "stuck", "queue", f"s{n}", "…") for n in range(5)]
    down = Alert("critical", "down", "store", "", "the broker does not answer")
    found = gathered([*dead, *apart, down])
    assert [alert.kind for alert in found] == ["down", "dead-letters", *["stuck"] * 5]
    assert (found[1].count, found[1].subject) == (7, "")
    assert found[1].message.startswith("7 queues have dead letters")
    assert sum(alert.count for alert in found) == 13
