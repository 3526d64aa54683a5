"""For how long a leader may acknowledge, and when a standby may take over; time is an argument.

Both measure on their own clocks. The leader counts from before it asked for a renewal, a standby
from when it saw the renewal, and waits a tenth longer: so the leader stops acknowledging first.
"""

from __future__ import annotations

from nexo.replication.lease import LeaderLease

PATIENCE = 1.1
"""How long a standby waits for a renewal, in leases."""
RELEASED_PATIENCE = 3.0
"""How long others leave the lead to the standby it was given to, in leases."""
LOOKS_PER_LEASE = 8
FOREVER = float("inf")


class Tenure:
    """The leader's side.

    A leader whose newest lease says that it knows of no standby may go on without the store: a
    standby that comes then asks it first whether it still serves. Such a leader must show, by
    `pulse`, that it runs: one that was paused for longer than a lease has lapsed like any other.
    """

    def __init__(self, lease_s: float, asked_s: float) -> None:
        """``asked_s``: before the lease was asked for."""
        self._lease_s = lease_s
        self._number = -1
        self._asked_s = asked_s
        self._alone = False
        self.until_s = asked_s + lease_s
        """Nothing may be acknowledged later."""
        self.proofs = 1
        """How often the lead was proved: at its beginning, and after each lapse."""

    def lapsed(self, now_s: float) -> bool:
        """Whether another server may have begun to lead."""
        return now_s > self.until_s

    def asking(self, number: int, now_s: float, *, alone: bool) -> None:
        """About to ask for a lease. Of several tries the first counts: it may have worked.

        So from the first try that does not say ``alone``, a standby may count it as said.
        """
        if number != self._number:
            self._number, self._asked_s = number, now_s
        self._alone = self._alone and alone

    def renewed(self, now_s: float, *, alone: bool, proved: bool) -> None:
        """The lease was renewed; ``proved``: after a lapse, and nobody leads since."""
        if self.lapsed(now_s):
            if not proved:
                return
            self.proofs += 1
        self._alone = alone
        self.until_s = max(self.until_s, self._asked_s + self._lease_s)

    def pulse(self, now_s: float) -> None:
        """This process runs."""
        if self._alone and not self.lapsed(now_s):
            self.until_s = max(self.until_s, now_s + self._lease_s)


class Watch:
    """A standby's side: the newest lease that it saw, and when."""

    def __init__(self, server: str, number: int, lease: LeaderLease, now_s: float) -> None:
        self._server = server
        self.saw(number, lease, now_s)

    def saw(self, number: int, lease: LeaderLease, now_s: float) -> None:
        self.number, self.lease, self._seen_s = number, lease, now_s
        self._silent_s = FOREVER if lease.alone else now_s

    def asked(self, now_s: float, *, answered: bool) -> None:
        """The leader was asked whether it serves, and has answered by now, or did not in time.

        One that knows of no standby serves on while it runs: it counts as running up to here.
        """
        if answered:
            self._silent_s = FOREVER
        else:
            self._silent_s = min(self._silent_s, now_s)

    def could_not_look(self, now_s: float) -> None:
        """The store did not answer, so the lease may have been renewed: wait half of it more."""
        self._seen_s = max(self._seen_s, now_s - self._lease_s / 2)

    @property
    def _lease_s(self) -> float:
        return self.lease.lease_ms / 1000

    def due_s(self) -> float:
        """When the lead may be taken if nothing newer is seen."""
        if not self.lease.released:
            return max(self._seen_s, self._silent_s) + PATIENCE * self._lease_s
        if self.lease.to in ("", self._server):
            return self._seen_s
        return self._seen_s + RELEASED_PATIENCE * self._lease_s

    def pause_s(self, now_s: float) -> float:
        """How long to wait before the next look."""
        return max(0.01, min(self._lease_s / LOOKS_PER_LEASE, self.due_s() - now_s))

    def overdue(self, now_s: float) -> bool:
        """Whether the leader is probably gone: a renewal is expected three times in a lease."""
        return now_s - self._seen_s > self._lease_s / 2
