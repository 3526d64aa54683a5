"""Ordered groups as people see them, with those whose members are Kafka clients.

Offsets of a group are those of the ordered group of its name; only `Classic` knows the members of
classic groups, and groups without commits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from nexo.brokers.stream.groups.kafka.consumer_protocol import assigned
from nexo.brokers.stream.groups.kafka.coordinator import Coordinator
from nexo.brokers.stream.groups.kafka.model import RebalanceState
from nexo.brokers.stream.status import ordered_lag
from nexo.errors import InvalidName, NotFound
from nexo.model.stream import KafkaGroup, KafkaMember, OrderedInfo
from nexo.names import name_of
from nexo.services.connection import Connection
from nexo.services.stream.core import Core
from nexo.services.stream.groups.classic import Classic
from nexo.services.stream.groups.consumers import Consumers
from nexo.services.stream.groups.ordered import Ordered, ordered_info


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
        live = self._live(group)
        try:
            stored = self._ordered.groups(connection, group, stream)
        except NotFound:
            if not live:
                raise
            stored = []
        known = {view.name for view in stored}
        views = [*stored, *(self._fresh(name) for name in live if name not in known)]
        shown = [self._view(view, live.get(view.name), stream) for view in views]
        return [view for view in shown if stream is None or group or _concerns(view)]

    def readers(self, group: str) -> Mapping[str, int]:
        """How many Kafka clients of a group read each stream."""
        found = self._classic.group(group)
        if found is None:
            return {}
        return Counter(stream for stream, _ in {(topic, who) for topic, _, who in _owners(found)})

    def _live(self, only: str | None) -> dict[str, Coordinator]:
        if only is None:
            return dict(self._classic.live())
        found = self._classic.group(only)
        return {} if found is None else {only: found}

    def _fresh(self, name: str) -> OrderedInfo:
        """A group without offsets, or without offsets of the requested stream."""
        return ordered_info(name, self._ordered.found_or_new(name), [], [], {})

    def _view(self, view: OrderedInfo, live: Coordinator | None, only: str | None) -> OrderedInfo:
        if live is None:
            return self._assigned_here(view)
        group, streams = self._ordered.found_or_new(view.name), self._core.engine.streams
        owners = [row for row in _owners(live) if only in (None, row[0])]
        lags = dict(view.lags)
        for name in {topic for topic, *_ in owners} - lags.keys():
            if name in streams:
                lags[name] = ordered_lag(group, streams.get(name))
        return replace(
            view,
            generation=live.generation,
            leader=live.leader,
            members=list(live.members),
            stable=live.state is RebalanceState.STABLE,
            owners=owners,
            lag=sum(lags.values()),
            lags=lags,
            kafka=_kafka(live),
        )

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


def _kafka(live: Coordinator) -> KafkaGroup:
    members = [
        _member(each.id, each.join.client_id, each.join.client_host, each.join.instance_id)
        for each in live.members.values()
    ]
    return KafkaGroup(state=live.state.value, assignor=live.protocol, members=members)


def _member(name: str, client_id: str, host: str, instance: str | None) -> KafkaMember:
    return KafkaMember(id=name, client_id=client_id, host=host.removeprefix("/"), instance=instance)
