"""Consumer groups as rows: ``stream_offsets`` and ``stream_groups``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from nexo.hot_log import HotLog
from nexo.protocol import stream as wire


def offset_rows(broker: HotLog, infos: Sequence[wire.StreamInfo]) -> Iterator[tuple[object, ...]]:
    """``group_id, topic, partition, offset, metadata, committed_at`` of every group."""
    for info in infos:
        for group in broker.groups(info.name):
            for partition, lane in enumerate(group.partitions):
                if lane.floor > 0:
                    yield group.name, info.name, partition, lane.floor - 1, None, None
    for ordered in broker.ordered_groups():
        for at in ordered.offsets:
            when = datetime.fromtimestamp(at.committed_ms / 1000, UTC)
            yield ordered.name, at.topic, at.partition, at.offset, at.metadata, when


def group_rows(broker: HotLog, infos: Sequence[wire.StreamInfo]) -> Iterator[tuple[object, ...]]:
    """``group_id, kind, topics, generation, leader, members, assignment`` of every group."""
    for info in infos:
        for group in broker.groups(info.name):
            members = json.dumps(group.consumers)
            topics = json.dumps([info.name])
            yield group.name, "shared", topics, group.generation, None, members, None
    for ordered in broker.ordered_groups():
        owners = [{"topic": t, "partition": p, "member": m} for t, p, m in ordered.owners]
        topics = json.dumps(sorted({topic for topic, _, _ in ordered.owners}))
        members = json.dumps(ordered.members)
        yield (
            ordered.name, "ordered", topics, ordered.generation, ordered.leader, members,
            json.dumps(owners),
        )  # fmt: skip
