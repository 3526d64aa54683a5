"""Requests of ordered groups; `nexo.protocol.stream_ordered` says what they look like."""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec import structs

from nexo.brokers.stream.groups.assignment import TopicPartition
from nexo.brokers.stream.groups.ordered_state import OffsetCommit, StoredOffset
from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import calling, reply_ok, reply_packed, returning, waiting
from nexo.protocol import stream_ordered as wire
from nexo.protocol.messages import unpack
from nexo.protocol.ops import Op
from nexo.services.stream.groups.offsets import GroupOffsets
from nexo.services.stream.groups.ordered import MemberAssignment, Ordered
from nexo.services.stream.groups.overview import GroupOverview, OrderedStatus


class OrderedRequests:
    """Handlers of the S_ORDERED_ commands, heartbeats and commits."""

    def __init__(self, ordered: Ordered, offsets: GroupOffsets, overview: GroupOverview) -> None:
        self._offsets = offsets
        assigned = partial(reply_packed, encode=_assigned)
        self.handlers: dict[int, Handler] = {
            Op.S_ORDERED_JOIN: calling(wire.OrderedJoin, ordered.join, assigned),
            Op.S_ORDERED_LEAVE: calling(wire.OrderedLeave, ordered.leave, reply_ok),
            Op.S_HEARTBEAT: waiting(wire.Heartbeat, ordered.heartbeat, assigned),
            Op.S_COMMIT: self.commit,
            Op.S_COMMITTED: returning(
                wire.CommittedAsk, offsets.committed, partial(reply_packed, encode=_stored)
            ),
            Op.S_ORDERED_SEEK: self.seek,
            Op.S_ORDERED_GROUPS: returning(
                wire.OrderedAsk, overview.groups, partial(reply_packed, encode=_infos)
            ),
            Op.S_ORDERED_DELETE: calling(wire.OrderedName, ordered.delete, reply_ok),
        }

    def commit(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.Commit, payload)
        self._offsets.commit(
            peer,
            ask.group,
            [OffsetCommit(*row) for row in ask.offsets],
            reply_ok(peer, request_id),
            member=ask.member,
            generation=ask.generation,
            rewind=ask.rewind,
        )

    def seek(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.OrderedSeek, payload)
        offsets = [OffsetCommit(*row) for row in ask.offsets]
        self._offsets.seek(peer, ask.group, offsets, reply_packed(peer, request_id, int))


def _assigned(found: MemberAssignment) -> wire.Assigned:
    return wire.Assigned(member=found.member, **structs.asdict(found.assignment))


def _infos(found: list[OrderedStatus]) -> list[wire.OrderedInfo]:
    return [_info(each) for each in found]


def _info(found: OrderedStatus) -> wire.OrderedInfo:
    view = found.ordered
    group, kafka = view.group, found.kafka
    info = wire.OrderedInfo(
        name=view.name,
        generation=group.generation,
        leader=group.leader,
        members=group.members,
        stable=group.stable,
        options=msgspec.to_builtins(group.options),
        owners=[(topic, partition, who) for (topic, partition), who in view.owners],
        offsets=_stored(view.offsets),
        lag=sum(view.lags.values()),
        lags=view.lags,
    )
    if kafka is None:
        return info
    return structs.replace(
        info, generation=kafka.generation, leader=kafka.leader, stable=kafka.state == "Stable",
        members=[member.id for member in kafka.members],
        kafka=msgspec.convert(kafka, wire.KafkaGroup, from_attributes=True),
    )  # fmt: skip


def _stored(rows: list[tuple[TopicPartition, StoredOffset]]) -> list[wire.CommittedAt]:
    return [
        wire.CommittedAt(topic=topic, partition=partition, **structs.asdict(kept))
        for (topic, partition), kept in rows
    ]
