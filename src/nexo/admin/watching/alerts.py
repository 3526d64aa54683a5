"""Rules that decide what needs attention, from what is watched; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from nexo.admin.watching.watch import MINUTE_S, BrokerWatch, GroupWatch, QueueWatch
from nexo.lake.progress import PipelineProgress
from nexo.model import Broker
from nexo.replication.state import ReplicaState

Level: TypeAlias = Literal["critical", "warning"]

GROWTH = 1_000
"""A lag that grew by this much in a minute, and by a tenth, is worth a warning."""
LOW_DISK_FACTOR = 4
MERGE_BEHIND_S = 3_600.0
"""Merging that takes longer than this, and longer than before, is worth a warning."""
LATE_REPLICA_MS = 10_000
"""A longer wait for the object store is an alert."""
RESTARTED_MS = 3_600_000
"""How long a broker's restart is an alert."""


class Alert(msgspec.Struct, frozen=True):
    """Something that needs attention."""

    level: Level
    kind: str
    """Stable name of the rule."""
    broker: str
    subject: str
    """The queue, stream or group it is about; empty for the whole broker."""
    message: str
    group: str = ""
    count: int = 1
    """The number of things, if it sums up several alerts of one kind."""


def of_broker(watch: BrokerWatch, reserve: int, now_ms: int) -> Iterator[Alert]:
    """Alerts about a broker; ``reserve`` is the disk it must not use up."""
    name = watch.broker.label
    if not watch.up:
        yield Alert("critical", "down", name, "", f"the broker does not answer: {watch.error}")
        return
    if watch.restarted_ms is not None and now_ms < watch.restarted_ms + RESTARTED_MS:
        minutes = (now_ms - watch.restarted_ms) // 60_000
        message = (
            f"its process ended and was started again {minutes} min ago: the log has the reason"
        )
        yield Alert("warning", "restarted", name, "", message)
    disk = watch.status.get("disk", {})
    if disk.get("failed"):
        yield Alert("critical", "sync-failed", name, "", str(disk["failed"]))
    elif disk.get("full"):
        yield Alert("critical", "disk-full", name, "", "the disk is full: writes are refused")
    elif 0 <= disk.get("free_bytes", reserve * LOW_DISK_FACTOR) < reserve * LOW_DISK_FACTOR:
        free_mib = disk["free_bytes"] // 1024**2
        yield Alert("warning", "disk-low", name, "", f"only {free_mib} MiB of disk are left")
    yield from _lost(name, watch.status.get("lost", {}))
    replica = watch.status.get("replica") or {}
    lag_ms = replica.get("lag_ms", 0)
    if replica.get("uploaded_again"):
        message = (
            "objects were missing from the bucket, so all files were uploaded again: look who or "
            "what deletes there (seen at the broker's last start)"
        )
        yield Alert("critical", "bucket-lost", name, "", message)
    if lag_ms > LATE_REPLICA_MS:
        message = f"the object store has taken nothing for {lag_ms // 1000} s: see the server's log"
        yield Alert("critical", "not-replicated", name, "", message)
    if watch.broker is Broker.PUBSUB and any(watch.series["dropped"].tail(MINUTE_S)):
        slow = ", ".join(row["client"] for row in watch.status.get("slow", [])[:3])
        yield Alert("warning", "drops", name, "", f"slow subscribers lose messages: {slow}")


def _lost(broker: str, lost: dict[str, Any]) -> Iterator[Alert]:
    """Alerts about the losses that damaged files caused."""
    if count := lost.get("count", 0):
        what = "; ".join(lost["first"][:3])
        message = f"damaged files have cost records ({_counted(count, 'place')}): {what}"
        yield Alert("critical", "lost", broker, "", message)


def of_queue(queue: QueueWatch) -> Iterator[Alert]:
    """Alerts about a queue."""
    info, name = queue.info, queue.info.name
    if info.losses:
        message = f"damaged files have cost jobs: {'; '.join(info.losses[:3])}"
        yield Alert("critical", "lost", "queue", name, message)
    if info.dead:
        message = f"{_counted(info.dead, 'dead letter')} to replay or delete"
        yield Alert("warning", "dead-letters", "queue", name, message)
    if info.waiting and not info.paused and _still(queue.finished.series.tail(MINUTE_S)):
        who = f"{info.working:,} in work" if info.working else "no worker takes any"
        message = f"{_counted(info.waiting, 'job')} waiting, none finished for a minute, {who}"
        yield Alert("warning", "stuck", "queue", name, message)


def of_group(group: GroupWatch) -> Iterator[Alert]:
    """Alerts about a group."""
    info = group.info
    where = ("stream", info.stream)
    if info.parked:
        message = f"group {info.name} has {_counted(info.parked, 'parked record')}"
        yield Alert("warning", "parked", *where, message, info.name)
    if not info.lag:
        return
    lags = [lag for lag in group.lag.tail(MINUTE_S) if lag is not None]
    if len(lags) == MINUTE_S and lags[-1] - lags[0] > max(GROWTH, lags[0] / 10):
        message = f"group {info.name} is {info.lag:,} records behind, and more each second"
        yield Alert("warning", "lag", *where, message, info.name)
    elif info.consumers and _still(group.finished.series.tail(MINUTE_S)):
        message = f"group {info.name} has consumers, but finished nothing for a minute"
        yield Alert("warning", "stuck", *where, message, info.name)


def of_pipeline(pipeline: PipelineProgress, now_ms: int) -> Iterator[Alert]:
    """Alerts about a pipeline into the lake."""
    if pipeline.running and not pipeline.alive(now_ms):
        message = f"{pipeline.id} stopped without a word: it was killed, or hangs"
        yield Alert("warning", "pipeline-silent", "stream", "", message)
    elif pipeline.error:
        streams = ", ".join(one.stream for one in pipeline.streams if one.error)
        about = f" with {streams}" if streams else ""
        message = f"the last run failed{about}: {pipeline.error}"
        yield Alert("warning", "pipeline-failed", "stream", "", message)
    else:
        for one in pipeline.streams if pipeline.alive(now_ms) else ():
            if one.error:
                message = f"the pipeline cannot take it: {one.error}"
                yield Alert("warning", "pipeline-stream", "stream", one.stream, message)
        for flow in pipeline.flows if pipeline.alive(now_ms) else ():
            if flow.error:
                message = f"flow {flow.flow} pauses: {flow.error}"
                yield Alert("warning", "pipeline-flow", "stream", "", message)


def of_debts(pipeline: PipelineProgress, now_ms: int) -> Iterator[Alert]:
    """Alerts about tables whose files pile up faster than they are merged."""
    for one in pipeline.debts if pipeline.alive(now_ms) else ():
        if one.behind_s > MERGE_BEHIND_S and one.is_rising:
            message = (
                f"table {one.table} has {one.small_files:,} small files, {one.behind_s / 3600:.1f} "
                "hours of merging, and more each round: give the pipeline more cores, or --lag"
            )
            yield Alert("warning", "merge-behind", "stream", "", message)


def of_replica(state: ReplicaState) -> Iterator[Alert]:
    """Alerts about replication as a whole."""
    if state.problem:
        level: Level = "critical" if state.role == "leader" else "warning"
        yield Alert(level, "replica", "stream", "", f"replication: {state.problem}")
    elif state.role == "standby" and state.lag_ms > LATE_REPLICA_MS:
        message = f"this standby is {state.lag_ms // 1000} s behind {state.leader}"
        yield Alert("warning", "standby-behind", "stream", "", message)


APART = 5
"""Alerts of one kind and broker that are shown one by one; more are one line."""

_SUMS = {
    "dead-letters": "queues have dead letters to replay or delete",
    "stuck": "have work, and finished nothing for a minute",
    "parked": "groups have parked records",
    "lag": "groups fall behind, and more each second",
    "lost": "queues lost jobs to damaged files",
}


def gathered(found: Iterable[Alert]) -> list[Alert]:
    """The alerts, the worst first; many of a kind are one, which says how many."""
    kinds: dict[tuple[str, str], list[Alert]] = {}
    for alert in _of_one_disk(found):
        kinds.setdefault((alert.kind, alert.broker), []).append(alert)
    rows = [row for alike in kinds.values() for row in _gathered(alike)]
    return sorted(rows, key=lambda alert: alert.level)


def _of_one_disk(found: Iterable[Alert]) -> Iterator[Alert]:
    """The alerts; those that several brokers raise about one disk become one."""
    disks: dict[tuple[str, str], list[Alert]] = {}
    for alert in found:
        if alert.kind in {"disk-low", "disk-full"}:
            disks.setdefault((alert.kind, alert.message), []).append(alert)
        else:
            yield alert
    for (kind, message), alike in disks.items():
        others = ", ".join(alert.broker for alert in alike[1:])
        said = f"{message} (and for {others})" if others else message
        yield Alert(alike[0].level, kind, alike[0].broker, "", said)


def _gathered(alike: list[Alert]) -> list[Alert]:
    first = alike[0]
    if len(alike) <= APART or first.kind not in _SUMS:
        return alike
    names = ", ".join(alert.group or alert.subject for alert in alike[:3])
    what = _SUMS[first.kind]
    if first.kind == "stuck":
        what = f"{'queues' if first.broker == 'queue' else 'groups'} {what}"
    message = f"{len(alike):,} {what}: {names}, …"
    return [Alert(first.level, first.kind, first.broker, "", message, count=len(alike))]


def _still(rates: list[float | None]) -> bool:
    """Whether nothing happened for a whole minute."""
    return len(rates) == MINUTE_S and not any(rates)


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
