"""Requests of ordered groups; `nexo.protocol.stream_ordered` says what they look like."""

from __future__ import annotations

import msgspec
from msgspec import structs

from nexo.brokers.stream.groups.assignment import TopicPartition
from nexo.brokers.stream.groups.ordered_state import OffsetCommit, StoredOffset
from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import reply_ok, reply_packed
from nexo.protocol import stream_ordered as wire
from nexo.protocol.messages import pack, unpack
from nexo.protocol.ops import Op
from nexo.services.stream.groups.offsets import GroupOffsets
from nexo.services.stream.groups.ordered import MemberAssignment, Ordered
from nexo.services.stream.groups.overview import GroupOverview, OrderedStatus


class OrderedRequests:
    """Handlers of the S_ORDERED_ commands, heartbeats and commits."""

    def __init__(self, ordered: Ordered, offsets: GroupOffsets, overview: GroupOverview) -> None:
        self._ordered = ordered
        self._offsets = offsets
        self._overview = overview
        self.handlers: dict[int, Handler] = {
            Op.S_ORDERED_JOIN: self.join,
            Op.S_ORDERED_LEAVE: self.leave,
            Op.S_HEARTBEAT: self.heartbeat,
            Op.S_COMMIT: self.commit,
            Op.S_COMMITTED: self.committed,
            Op.S_ORDERED_SEEK: self.seek,
            Op.S_ORDERED_GROUPS: self.groups,
            Op.S_ORDERED_DELETE: self.delete,
        }

    def join(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.OrderedJoin, payload)
        done = reply_packed(peer, request_id, _assigned)
        self._ordered.join(
            peer, ask.group, ask.topics, done, member=ask.member, options=ask.options
        )

    def heartbeat(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.Heartbeat, payload)
        self._ordered.heartbeat(
            peer,
            request_id,
            ask.group,
            ask.member,
            ask.generation,
            reply_packed(peer, request_id, _assigned),
            wait_ms=ask.wait_ms,
            known=ask.known,
        )

    def leave(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.OrderedLeave, payload)
        self._ordered.leave(peer, ask.group, ask.member, reply_ok(peer, request_id))

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

    def committed(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.CommittedAsk, payload)
        rows = self._offsets.committed(peer, ask.group, ask.topic)
        peer.data(request_id, pack(_stored(rows)))

    def seek(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.OrderedSeek, payload)
        offsets = [OffsetCommit(*row) for row in ask.offsets]
        self._offsets.seek(peer, ask.group, offsets, reply_packed(peer, request_id, int))

    def groups(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.OrderedAsk, payload)
        views = self._overview.groups(peer, ask.group, ask.stream)
        peer.data(request_id, pack([_info(view) for view in views]))

    def delete(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        ask = unpack(wire.OrderedName, payload)
        self._ordered.delete(peer, ask.group, reply_ok(peer, request_id))


def _assigned(found: MemberAssignment) -> wire.Assigned:
    assignment = found.assignment
    return wire.Assigned(
        member=found.member,
        generation=assignment.generation,
        leader=assignment.leader,
        owned=assignment.owned,
        revoked=assignment.revoked,
        awaited=assignment.awaited,
    )


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
        kafka=wire.KafkaGroup(
            state=kafka.state, assignor=kafka.assignor, members=[
                wire.KafkaMember(id=m.id, client_id=m.client_id, host=m.host, instance=m.instance)
                for m in kafka.members
            ],
        ),
    )  # fmt: skip


def _stored(rows: list[tuple[TopicPartition, StoredOffset]]) -> list[wire.CommittedAt]:
    return [
        wire.CommittedAt(
            topic=topic,
            partition=partition,
            offset=kept.offset,
            metadata=kept.metadata,
            committed_ms=kept.committed_ms,
        )
        for (topic, partition), kept in rows
    ]
