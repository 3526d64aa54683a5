"""Ordered groups as people see them, with those whose members are Kafka clients.

Offsets of a group are those of the ordered group of its name; only `Classic` knows the members of
classic groups, and groups without commits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

from msgspec import to_builtins
from msgspec.structs import replace

from nexo.access.permit import READ
from nexo.batch.kafka_assignment import assigned
from nexo.brokers.stream.groups.kafka.coordinator import Coordinator
from nexo.brokers.stream.groups.kafka.model import RebalanceState
from nexo.brokers.stream.groups.ordered import no_group
from nexo.brokers.stream.status import ordered_lag
from nexo.errors import InvalidName
from nexo.model.names import name_of
from nexo.model.stream import KafkaGroup, KafkaMember, OrderedInfo
from nexo.services.connection import Connection
from nexo.services.stream.core import Core
from nexo.services.stream.groups.kafka_classic import Classic
from nexo.services.stream.groups.kafka_consumers import Consumers
from nexo.services.stream.groups.offsets import stored_offsets
from nexo.services.stream.groups.ordered import Ordered
from nexo.services.stream.permits import permit_everything, permit_group


class GroupOverview:
    """Lists groups."""

    def __init__(
        self, core: Core, ordered: Ordered, classic: Classic, consumers: Consumers
    ) -> None:
        self._core = core
        self._ordered = ordered
        self._classic = classic
        self._consumers = consumers

    def groups(
        self, connection: Connection, group: str | None = None, stream: str | None = None
    ) -> list[OrderedInfo]:
        """All groups, one, or those that read a stream (then only what concerns that stream)."""
        if stream is None:
            permit_everything(connection, READ)
        else:
            permit_group(connection, stream, group)
        if group is not None:
            if self._classic.group(group) is None:
                self._core.engine.find_ordered(group)
            view = self._view(group, stream)
            if not _concerns(view) and not self._classic.may_use(connection, group):
                raise no_group(group)
            return [view]
        views = [self._view(name, stream) for name in self._names(stream)]
        return [view for view in views if stream is None or _concerns(view)]

    def _names(self, stream: str | None) -> Iterable[str]:
        """All groups, or those that may read a stream: any classic group may."""
        ordered = self._core.engine.ordered.items()
        stored = [name for name, each in ordered if stream is None or stream in each.topics]
        return dict.fromkeys([*stored, *(name for name, _ in self._classic.live())])

    def readers(self, group: str) -> Mapping[str, int]:
        """How many Kafka clients of a group read each stream."""
        found = self._classic.group(group)
        if found is None:
            return {}
        return Counter(stream for stream, _ in {(topic, who) for topic, _, who in _owners(found)})

    def _view(self, name: str, only: str | None) -> OrderedInfo:
        group, live = self._ordered.found_or_new(name), self._classic.group(name)
        owners = _owners(live) if live else [(*at, who) for at, who in sorted(group.owners.items())]
        owners = [row for row in owners if only in (None, row[0])]
        topics = {*group.topics, *(topic for topic, *_ in owners)} if live else group.topics
        streams = self._core.engine.streams
        lags = {
            topic: ordered_lag(group, streams.get(topic))
            for topic in sorted(topics)
            if topic in streams and only in (None, topic)
        }
        view = OrderedInfo(
            name=name,
            generation=group.generation,
            leader=group.leader,
            members=group.members,
            stable=group.stable,
            options=to_builtins(group.options),
            owners=owners,
            offsets=stored_offsets(group, only),
            lag=sum(lags.values()),
            lags=lags,
        )
        return self._assigned_here(view) if live is None else _assigned_there(view, live)

    def _assigned_here(self, view: OrderedInfo) -> OrderedInfo:
        """With the Kafka clients among the members of a group whose partitions we assign."""
        members = [
            _member(name, known.client_id, known.client_host, known.instance)
            for name in view.members
            if (known := self._consumers.client(view.name, name)) is not None
        ]
        if not members:
            return view
        state = "Stable" if view.stable else "Reconciling"
        kafka = KafkaGroup(state=state, assignor=view.options["strategy"], members=members)
        return replace(view, members=[member.id for member in members], kafka=kafka)


def _assigned_there(view: OrderedInfo, live: Coordinator) -> OrderedInfo:
    """With the members of a classic group, one of which assigns the partitions."""
    members = [
        _member(each.id, each.join.client_id, each.join.client_host, each.join.instance_id)
        for each in live.members.values()
    ]
    return replace(
        view,
        generation=live.generation,
        leader=live.leader,
        members=list(live.members),
        stable=live.state is RebalanceState.STABLE,
        kafka=KafkaGroup(state=live.state.value, assignor=live.protocol, members=members),
    )


def _concerns(view: OrderedInfo) -> bool:
    return bool(view.owners or view.offsets or view.lags)


def _owners(live: Coordinator) -> list[tuple[str, int, str]]:
    """``stream, partition, member``, in order."""
    found: list[tuple[str, int, str]] = []
    for member in live.members.values() if live.protocol_type == "consumer" else ():
        for topic, partition in assigned(member.assignment):
            with suppress(InvalidName):
                found.append((name_of(topic), partition, member.id))
    return sorted(found)


def _member(name: str, client_id: str, host: str, instance: str | None) -> KafkaMember:
    return KafkaMember(id=name, client_id=client_id, host=host.removeprefix("/"), instance=instance)
