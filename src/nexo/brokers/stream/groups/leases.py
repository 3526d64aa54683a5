"""Leases: who holds which delivered range, and until when."""

from __future__ import annotations

from collections import OrderedDict

NEVER = 1 << 62
"""The expiry of a range that its holder keeps until it is acked or claimed."""


class LeaseHolder:
    """A consumer of a shared group, and the leases it holds."""

    __slots__ = ("ahead", "held", "leases", "name", "reports_starts")

    def __init__(self, name: str, *, reports_starts: bool) -> None:
        self.name = name
        self.reports_starts = reports_starts
        self.leases: dict[RangeLease, None] = {}
        self.held = 0
        """How many messages are in flight to it."""
        self.ahead: list[RangeLease] = []
        """What it has asked for before it had finished what it got before."""

    def take_up(self) -> None:
        """It asks again: now it works on what it had asked for ahead."""
        for lease in self.ahead:
            lease.ahead = False
        self.ahead = []


class RangeLease:
    """The right of one member to the messages of a delivered range until ``expires_ms``."""

    __slots__ = (
        "ahead", "attempt", "end", "expires_ms", "first", "held", "member", "partition",
        "since_ms",
    )  # fmt: skip

    def __init__(
        self,
        member: LeaseHolder,
        partition: int,
        first: int,
        end: int,
        *,
        attempt: int,
        expires_ms: int,
        since_ms: int = 0,
    ) -> None:
        self.member = member
        self.partition = partition
        self.first = first
        self.end = end
        self.attempt = attempt
        self.expires_ms = expires_ms
        self.since_ms = since_ms
        """When it was granted, for what is kept until claimed."""
        self.held = end - first
        """How many messages of the range are still in flight under this lease."""
        self.ahead = False
        """No handler begins on it before its member's next take."""


class LeaseBook:
    """All leases of a group, soonest expiry first.

    All leases of a group last equally long and time does not run backwards, so the order
    in which they were granted or renewed is the order in which they expire: no heap.
    """

    __slots__ = ("_leases",)

    def __init__(self) -> None:
        self._leases: OrderedDict[RangeLease, None] = OrderedDict()

    def grant(self, lease: RangeLease) -> None:
        self._leases[lease] = None
        lease.member.leases[lease] = None
        lease.member.held += lease.held

    def oldest(self) -> RangeLease | None:
        """The lease that was granted or renewed first."""
        return next(iter(self._leases), None)

    def renew(self, lease: RangeLease, expires_ms: int) -> None:
        lease.expires_ms = expires_ms
        self._leases.move_to_end(lease)

    def let_go(self, lease: RangeLease, count: int) -> None:
        """Remove ``count`` messages from the lease; the last one ends it."""
        lease.held -= count
        lease.member.held -= count
        if not lease.held:
            del self._leases[lease]
            del lease.member.leases[lease]

    def expired(self, now_ms: int) -> list[RangeLease]:
        """The leases that have run out; they stay in the book."""
        found = []
        for lease in self._leases:
            if lease.expires_ms > now_ms:
                break
            found.append(lease)
        return found

    def next_deadline(self) -> int | None:
        """When the first lease runs out."""
        first = self.oldest()
        return None if first is None or first.expires_ms >= NEVER else first.expires_ms

    def limit(self, latest_ms: int) -> None:
        """Shorten every lease to ``latest_ms``, so that a shorter lease time keeps the order."""
        for lease in self._leases:
            lease.expires_ms = min(lease.expires_ms, latest_ms)

    def clear(self) -> None:
        for lease in self._leases:
            lease.member.leases.clear()
            lease.member.held = 0
        self._leases.clear()
