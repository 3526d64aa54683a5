# Generated from _async/consumer/group.py by tools/unasync.py; edit that file instead.
"""Consumer groups: members that share the partitions of topics (SPEC G6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Never, Unpack

from nexo.client._sync.client import Client
from nexo.client._sync.handling import Closing
from nexo.client.checks import not_keywords, text
from nexo.errors import NexoError
from nexo.topics._sync.consumer.consumer import Consumer, RebalanceHandlers
from nexo.topics._sync.nexo_backend import backend_for
from nexo.topics.model import ConsumerOptions, GroupDescription, Rebalance, T, topic_names
from nexo.topics.settings import group_timeout_ms, one_of


class ConsumerGroup(Closing, Generic[T]):
    """Every partition of every topic is owned by exactly one live member.

    ``rebalance_strategy`` is ``range``, which gives each member a run of neighbouring partitions,
    or ``roundRobin``, which deals them in turn. A member that sends nothing for
    ``session_timeout`` (30 s) is removed. Further options are those of the members'
    `Consumer`.
    """

    def __init__(
        self,
        group_id: str,
        *misplaced: Never,
        topics: str | Iterable[str] = (),
        server: Client | str | None = None,
        type_: type[T] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        if misplaced:
            raise not_keywords(misplaced, "ConsumerGroup(group_id, topics=['orders'])")
        self.group_id = text(group_id, "group_id")
        self.topics = topic_names(topics)
        self._options: ConsumerOptions = {
            "rebalance_strategy": "range",
            "session_timeout": 30.0,
            **options,
        }
        one_of("rebalance_strategy", self._options["rebalance_strategy"], "range", "roundRobin")
        group_timeout_ms("session_timeout", self._options["session_timeout"])
        self._server = server
        self._type = type_
        self._backend = backend_for(server)
        self._handlers = RebalanceHandlers()
        self._members: list[Consumer[T]] = []

    def on(self, event: str, handler: Callable[[Rebalance], Any]) -> None:
        """Call ``handler`` with each `Rebalance` of the members that `join` makes."""
        self._handlers.add(event, handler)

    def join(self, **options: Unpack[ConsumerOptions]) -> Consumer[T]:
        """A new member, with options of its own if given."""
        chosen: ConsumerOptions = {**self._options, **options}
        consumer: Consumer[T] = Consumer(
            self.topics,
            self.group_id,
            server=self._server,
            type_=self._type,
            handlers=self._handlers,
            **chosen,
        )
        consumer.join()
        self._members.append(consumer)
        return consumer

    def describe(self) -> GroupDescription:
        """Generation, leader, members, owners of partitions, committed offsets, and the lag."""
        return self._backend.describe_group(self.group_id)

    def close(self) -> None:
        """Let the members that `join` made leave."""
        members, self._members = self._members, []
        failure: NexoError | None = None
        for member in members:
            try:
                member.close()
            except NexoError as error:
                failure = failure or error
        self._backend.close()
        if failure is not None:
            raise failure
