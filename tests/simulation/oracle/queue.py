"""A queue: acknowledged jobs are delivered or dead, refused and finished ones never again."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.oracle.model import Model
from tests.simulation.oracle.outcomes import Outcome
from tests.simulation.world import World

_TICK_S = 0.002
"""Servers count whole milliseconds."""


@dataclass(frozen=True)
class Delivery:
    """One pop that returned the job: when it began, and when it returned."""

    began_s: float
    returned_s: float


@dataclass
class JobModel:
    """What is known of one job, by its value."""

    asked_s: float
    pushed: str = "unsure"
    pushed_s: float = 0.0
    deliveries: list[Delivery] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    done: bool = False
    """An ack was confirmed."""
    done_s: float = 0.0
    maybe_done: bool = False
    due_s: float = 0.0
    """Not delivered before, by a clock that is not set meanwhile."""
    dead: bool = False


@dataclass
class QueueOracle(Model):
    """All jobs of one queue."""

    broker = "queue"
    world: World
    name: str
    jobs: dict[int, JobModel] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    """By id: the value that it was given to."""
    clock_was_set: bool = False
    replicated: bool = False
    """Whether what is acknowledged outlives the machine."""
    taken_over_s: float = -1.0
    """When another machine went on without the newest."""

    def pushing(self, value: int, due_s: float = 0.0) -> None:
        self.jobs[value] = JobModel(self.world.now_s, due_s=due_s)

    def pushed(self, value: int, ended: Outcome) -> None:
        job = self.jobs[value]
        job.pushed, job.pushed_s = ended.kind, self.world.now_s
        if ended.ok and job.asked_s <= self.taken_over_s:  # the reply outlived the job
            job.pushed = "unsure"
        if ended.ok:
            job.ids.add(ended.value)
            if self.ids.setdefault(ended.value, value) != value:
                self._found("id twice", f"{ended.value}: {self.ids[ended.value]} and {value}")
        elif ended.kind == "refused" and job.deliveries:
            self._found("refused job", f"{value} was refused and had been delivered")
        self._check_id(value)

    def delivered(
        self, value: int, job_id: str, began_s: float, done_before: frozenset[int]
    ) -> Delivery:
        """A pop, begun when those of ``done_before`` were finished, returned the job."""
        delivery = Delivery(began_s, self.world.now_s)
        job = self.jobs.get(value)
        if job is None:
            self._found("invented job", f"{value} was never pushed")
            return delivery
        if job.pushed == "refused":
            self._found("refused job", f"{value} was refused and is delivered")
        if value in done_before and job.done:
            self._found("finished job", f"{value} is delivered after its ack was confirmed")
        if self.world.now_s < job.due_s - _TICK_S and not self.clock_was_set:
            self._found("delay", f"{value} is delivered {job.due_s - self.world.now_s:.3f} s early")
        job.deliveries.append(delivery)
        job.ids.add(job_id)
        self._check_id(value)
        return delivery

    def _check_id(self, value: int) -> None:
        if len(self.jobs[value].ids) > 1:
            self._found("job twice", f"{value} is stored as {sorted(self.jobs[value].ids)}")

    def acked(self, value: int, delivery: Delivery, asked_s: float, ended: Outcome) -> None:
        """An ack of one delivery, asked for at ``asked_s``, ended."""
        job = self.jobs[value]
        if ended.ok and ended.value is not False:
            for other in job.deliveries:
                if other.began_s >= delivery.returned_s and other.returned_s <= asked_s:
                    self._found("old attempt", f"{value}: ack of {delivery} after {other}")
            job.done, job.done_s = asked_s > self.taken_over_s, self.world.now_s
            job.maybe_done = True
        elif ended.unsure:
            job.maybe_done = True

    def taken_over(self, since_s: float, *, lossy: bool) -> None:
        if self.replicated and not lossy:
            return
        self.taken_over_s = self.world.now_s
        for job in self.jobs.values():
            if job.pushed == "ok" and (lossy or job.pushed_s >= since_s):
                job.pushed = "unsure"
            if job.done and (lossy or job.done_s >= since_s):
                job.done = False

    def finished(self) -> frozenset[int]:
        return frozenset(value for value, job in self.jobs.items() if job.done)

    def at_end(self, left: set[int], dead: set[int]) -> None:
        """``left`` waits, ``dead`` are dead letters, after everything was drained."""
        for value, job in self.jobs.items():
            found = job.done or job.maybe_done or value in left or value in dead
            if job.pushed == "ok" and not found:
                self._found(
                    "lost job",
                    f"{value}, delivered {len(job.deliveries)} times, is gone",
                )
            if job.done and (value in left or value in dead):
                self._found("finished job", f"{value} is there after its ack was confirmed")

    def _found(self, check: str, text: str) -> None:
        self.world.found(check, f"queue {self.name}: {text}")
