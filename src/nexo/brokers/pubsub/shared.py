"""Shared subscriptions: each message goes to one member of the group (SPEC C5)."""

from __future__ import annotations

from nexo.brokers.pubsub.message import Encoding, Part
from nexo.brokers.pubsub.subscriber import PatternSubscription, Subscriber


class ShareGroup:
    """The members of one ``$share/group/pattern``, served round robin."""

    __slots__ = ("_members", "_turn", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._members: list[PatternSubscription] = []
        self._turn = 0

    def __len__(self) -> int:
        return len(self._members)

    def join(self, member: PatternSubscription) -> None:
        self._members.append(member)

    def leave(self, member: PatternSubscription) -> None:
        """Remove a member and drop its waiting messages."""
        self._members.remove(member)

    def deliver(self, part: Part) -> None:
        """Distribute the messages, each member's in one piece."""
        shares: dict[PatternSubscription, list[int]] = {}
        for index in range(part.count):
            shares.setdefault(self._next(), []).append(index)
        for member, share in shares.items():
            client = member.subscriber
            _send(client, member, self._marked(part, client.encoding, share))

    def _marked(self, part: Part, encoding: Encoding, share: list[int]) -> list[bytes]:
        return [encoding.shared(part.messages[index], self.pattern) for index in share]

    def _next(self) -> PatternSubscription:
        """The next member that keeps up; if none does, simply the next."""
        members, count = self._members, len(self._members)
        for step in range(count):
            member = members[(self._turn + step) % count]
            if not member.subscriber.behind:
                self._turn += step + 1
                return member
        self._turn += 1
        return members[(self._turn - 1) % count]


def _send(client: Subscriber, member: PatternSubscription, messages: list[bytes]) -> None:
    if client.behind:
        member.keep(messages)
    else:
        client.push(b"".join(messages))
