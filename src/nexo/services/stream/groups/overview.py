"""Ordered groups as people see them, with those whose members are Kafka clients.

Offsets of a group are those of the ordered group of its name; only `Classic` knows the members of
classic groups, and groups without commits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from nexo.brokers.stream.groups.assignment import TopicPartition
from nexo.brokers.stream.groups.kafka.consumer_protocol import assigned
from nexo.brokers.stream.groups.kafka.coordinator import Coordinator
from nexo.brokers.stream.groups.ordered import OrderedGroup
from nexo.brokers.stream.survey import ordered_lag
from nexo.errors import InvalidName, NotFound
from nexo.names import name_of
from nexo.services.connection import Connection
from nexo.services.stream.core import Core
from nexo.services.stream.groups.classic import Classic
from nexo.services.stream.groups.consumers import Consumers
from nexo.services.stream.groups.ordered import Ordered, OrderedView


@dataclass(frozen=True, slots=True)
class KafkaClientView:
    """A Kafka client in a group."""

    id: str
    client_id: str
    host: str
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class KafkaStatus:
    """What a group of Kafka clients has beside its offsets."""

    state: str
    assignor: str
    generation: int
    leader: str
    members: list[KafkaClientView]


@dataclass(frozen=True, slots=True)
class OrderedStatus:
    """A group: all of it, or what concerns one stream."""

    ordered: OrderedView
    kafka: KafkaStatus | None = None


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
    ) -> list[OrderedStatus]:
        """All groups, one, or those that read a stream (then only what concerns that stream)."""
        live = self._live(group)
        try:
            stored = self._ordered.groups(connection, group, stream)
        except NotFound:
            if not live:
                raise
            stored = []
        known = {view.name for view in stored}
        views = [self._view(view, live.get(view.name), stream) for view in stored]
        fresh = (self._fresh(name) for name in live if name not in known)
        views += [self._view(view, live[view.name], stream) for view in fresh]
        return [view for view in views if stream is None or group or _concerns(view.ordered)]

    def readers(self, group: str) -> Mapping[str, int]:
        """How many Kafka clients of a group read each stream."""
        found = self._classic.group(group)
        if found is None:
            return {}
        return Counter(stream for stream, _ in {(at[0], who) for at, who in _owners(found)})

    def _live(self, only: str | None) -> dict[str, Coordinator]:
        if only is None:
            return dict(self._classic.live())
        found = self._classic.group(only)
        return {} if found is None else {only: found}

    def _fresh(self, name: str) -> OrderedView:
        """A group without offsets, or without offsets of the requested stream."""
        return OrderedView(name, self._core.engine.ordered.get(name) or OrderedGroup(), [], [], {})

    def _view(self, view: OrderedView, live: Coordinator | None, only: str | None) -> OrderedStatus:
        if live is None:
            return OrderedStatus(view, self._assigned_here(view))
        owners = [row for row in _owners(live) if only in (None, row[0][0])]
        streams, lags = self._core.engine.streams, dict(view.lags)
        for name in {at[0] for at, _ in owners} - lags.keys():
            if name in streams:
                lags[name] = ordered_lag(view.group, streams.get(name))
        return OrderedStatus(replace(view, owners=owners, lags=lags), _kafka(live))

    def _assigned_here(self, view: OrderedView) -> KafkaStatus | None:
        """The Kafka clients among the members of a group whose partitions the broker assigns."""
        group = view.group
        members = [
            KafkaClientView(
                name, known.client_id, known.client_host.removeprefix("/"), known.instance
            )
            for name in group.members
            if (known := self._consumers.client(view.name, name)) is not None
        ]
        if not members:
            return None
        state = "Stable" if group.stable else "Reconciling"
        return KafkaStatus(state, group.options.strategy, group.generation, group.leader, members)


def _concerns(view: OrderedView) -> bool:
    return bool(view.owners or view.offsets or view.lags)


def _owners(live: Coordinator) -> list[tuple[TopicPartition, str]]:
    found: list[tuple[TopicPartition, str]] = []
    for member in live.members.values() if live.protocol_type == "consumer" else ():
        for topic, partition in assigned(member.assignment):
            with suppress(InvalidName):
                found.append(((name_of(topic), partition), member.id))
    return sorted(found)


def _kafka(live: Coordinator) -> KafkaStatus:
    members = [
        KafkaClientView(
            member.id, member.join.client_id, member.join.client_host.removeprefix("/"),
            member.join.instance_id,
        )
        for member in live.members.values()
    ]  # fmt: skip
    return KafkaStatus(live.state.value, live.protocol, live.generation, live.leader, members)
