"""Use cases on whole queues: create, inspect, pause, dead letters, schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from nexo.access.grants import Action, Extent
from nexo.access.permit import ADMIN, ANY, READ, WRITE, may, permit, visible_rows
from nexo.brokers.queue.status import dead_jobs, info, schedules, waiting_jobs, working_jobs
from nexo.errors import AlreadyExists, InvalidInput
from nexo.model import Broker, check_name
from nexo.model.blocks import pack_block
from nexo.model.queue import QueueInfo, QueueSurvey, Schedule
from nexo.options.described import check_range, differences
from nexo.options.queue import options
from nexo.services.connection import Connection, Done
from nexo.services.durability import check_offered
from nexo.services.queue.core import QueueCore
from nexo.services.queue.open_queue import OpenQueue
from nexo.services.queue.views import OpenJob, job_views, working_views
from nexo.services.queue.work import job_number

MAX_PAGE = 10_000
MAX_SURVEY = 1_000
_PER_STEP = 25
"""Queues that a listing looks at before others are served."""
_OPENED = 25
"""Queues that one page opens."""

V = TypeVar("V")
ShowsName: TypeAlias = Callable[[str], bool] | None

IfExists: TypeAlias = Literal["agree", "update", "keep"]
"""What creating does with an existing queue: its options must agree, are changed, or stay."""


class DeadPage(NamedTuple):
    """Some of a queue's dead letters."""

    total: int
    jobs: list[OpenJob]


class QueueAdmin(QueueCore):
    """The rare use cases."""

    def _find(self, connection: Connection, actions: Sequence[Action], name: str) -> OpenQueue:
        permit(connection.identity, Broker.QUEUE, actions, name)
        return self.registry.find(name)

    def check_admin(self, connection: Connection, name: str) -> None:
        """Raise `NotFound` or `Forbidden` unless the user may administer the queue."""
        self._find(connection, ADMIN, name)

    # -- the queue ----------------------------------------------------------------

    def create(
        self, connection: Connection, name: str, given: dict[str, Any], done: Done[QueueInfo],
        if_exists: IfExists = "agree",
    ) -> None:  # fmt: skip
        """Create a queue unless it exists (SPEC D1)."""
        permit(connection.identity, Broker.QUEUE, ADMIN, name)
        check_offered(given, self.runtime.settings)
        queue = self.registry.get(name)
        if queue is None:
            rules = options(given, self.defaults)
            self.runtime.check_writable()
            queue = self.registry.create(name, rules, self.now_ms())
        elif if_exists != "keep":
            self._agree(queue, given, may_change=if_exists == "update")
        self.confirm(queue, done, shown(queue))

    def _agree(self, queue: OpenQueue, given: dict[str, Any], *, may_change: bool) -> None:
        rules = options(given, queue.engine.options)
        if rules != queue.engine.options and not may_change:
            raise AlreadyExists(
                f"queue {queue.name!r} exists with other options "
                f"({differences(queue.engine.options, rules)}); update it, or create with update"
            )
        queue.engine.update(rules, self.now_ms())

    def update(
        self, connection: Connection, name: str, given: dict[str, Any], done: Done[QueueInfo]
    ) -> None:
        """Change options; those not given stay."""
        queue = self._find(connection, ADMIN, name)
        check_offered(given, self.runtime.settings)
        queue.engine.update(options(given, queue.engine.options), self.now_ms())
        self.confirm(queue, done, shown(queue))

    def delete(self, connection: Connection, name: str) -> None:
        """Delete a queue with all its jobs, durably."""
        self.remove(self._find(connection, ADMIN, name))

    def info(self, connection: Connection, name: str, *, to_use: bool = False) -> QueueInfo:
        """Options and counts; `NotFound` if there is no such queue.

        ``to_use`` creates it if the server allows creation on first use.
        """
        permit(connection.identity, Broker.QUEUE, ANY, name)
        queue = self.find_or_create(name) if to_use else self.registry.find(name)
        return shown(queue)

    def queues(
        self, connection: Connection, view: Callable[[QueueInfo], V], done: Done[list[V]]
    ) -> None:
        """Every queue that the user may see, by name, each as ``view`` shows it; in slices."""
        shows = self._shows(connection)
        self.slices.add(self._views([*self.registry.names_with()], shows, view, done), done)

    def _views(
        self,
        names: list[str],
        shows: ShowsName,
        view: Callable[[QueueInfo], V],
        done: Done[list[V]],
    ) -> Iterator[None]:
        found: list[V] = []
        for start in range(0, len(names), _PER_STEP):
            some = filter(shows, names[start : start + _PER_STEP])
            found += [view(shown(queue)) for queue in self.registry.those(some)]
            yield
        done(found)

    def survey(
        self, connection: Connection, position: int, limit: int, *, by_name: bool = False,
        search: str = "",
    ) -> QueueSurvey:  # fmt: skip
        """Some of the queues that the user may see, by creation or by name.

        Few of them are those that a start has left closed: opening them takes time.
        """
        check_range("limit", limit, MAX_SURVEY, 1)
        check_range("position", position, 2**53)
        registry, shows = self.registry, self._shows(connection)
        names = registry.names_with(search) if by_name else registry.names()
        if shows is not None:
            names = [*filter(shows, names)]
        page: list[QueueInfo] = []
        after, unopened = position, registry.unopened
        while after < min(position + limit, len(names)) and unopened - registry.unopened < _OPENED:
            page += map(shown, registry.those([names[after]]))
            after += 1
        return QueueSurvey(page, len(names), after if after < len(names) else 0)

    def _shows(self, connection: Connection) -> ShowsName:
        """Which names to show to the user; None for all."""
        return visible_rows(connection.identity, Broker.QUEUE, ANY, Extent.NAME)

    def purge(self, connection: Connection, name: str, done: Done[int]) -> None:
        """Remove every waiting or scheduled job; answers how many."""
        queue = self._find(connection, ADMIN, name)
        self.confirm(queue, done, queue.engine.purge())

    def pause(self, connection: Connection, name: str, paused: bool, done: Done[None]) -> None:
        queue = self._find(connection, ADMIN, name)
        queue.engine.pause(paused)
        self.confirm(queue, done, None)

    # -- jobs ---------------------------------------------------------------------

    def peek(
        self, connection: Connection, name: str, state: str, limit: int, offset: int
    ) -> list[OpenJob]:
        """Jobs that are ``waiting``, ``scheduled`` or ``working``, without leasing them."""
        _check_page(limit, offset)
        queue = self._find(connection, READ, name)
        queue.write_pushes(self.now_ms())
        engine = queue.engine
        match state:
            case "waiting":
                return job_views(queue, waiting_jobs(engine, limit, offset))
            case "scheduled":
                due = engine.dispatch.delays.upcoming(limit, offset)
                return job_views(queue, (job for _, job in due))
            case "working":
                return working_views(queue, working_jobs(engine, limit, offset))
        raise InvalidInput(f"state {state!r} is not 'waiting', 'scheduled' or 'working'")

    def cancel_jobs(
        self, connection: Connection, name: str, ids: Sequence[str], done: Done[int]
    ) -> None:
        """Remove jobs that have not started; answers how many.

        A user who may only push can cancel only that user's own jobs.
        """
        identity = connection.identity
        permit(identity, Broker.QUEUE, (*WRITE, *ADMIN), name)
        queue = self.registry.find(name)
        jobs = [job_number(queue, text) for text in ids]
        if identity is not None and not may(identity, Broker.QUEUE, ADMIN, name):
            owned = queue.engine.ledger.owner
            if any(owned(job) != identity.user.name for job in jobs):
                permit(identity, Broker.QUEUE, ADMIN, name)
        self.confirm(queue, done, sum(map(queue.engine.cancel, jobs)))

    # -- dead letters -------------------------------------------------------------

    def dead(self, connection: Connection, name: str, limit: int, offset: int) -> DeadPage:
        """Dead letters, newest first."""
        _check_page(limit, offset)
        queue = self._find(connection, READ, name)
        queue.write_pushes(self.now_ms())
        jobs = job_views(queue, dead_jobs(queue.engine, limit, offset))
        return DeadPage(len(queue.engine.ledger.dead), jobs)

    def replay(
        self, connection: Connection, name: str, ids: Sequence[str] | None, done: Done[int]
    ) -> None:
        """Let dead letters (all for None) run again from the start (SPEC D6)."""
        queue, jobs = self._dead_jobs(connection, name, ids)
        self.confirm(queue, done, queue.engine.replay(jobs, self.now_ms()))

    def delete_dead(
        self, connection: Connection, name: str, ids: Sequence[str] | None, done: Done[int]
    ) -> None:
        """Delete dead letters (all for None)."""
        queue, jobs = self._dead_jobs(connection, name, ids)
        self.confirm(queue, done, queue.engine.delete_dead(jobs))

    def _dead_jobs(
        self, connection: Connection, name: str, ids: Sequence[str] | None
    ) -> tuple[OpenQueue, list[int]]:
        queue = self._find(connection, ADMIN, name)
        if ids is None:
            return queue, [*queue.engine.ledger.dead]
        return queue, [job_number(queue, text) for text in ids]

    # -- schedules ----------------------------------------------------------------

    def set_cron(
        self, connection: Connection, name: str, schedule: Schedule, value: bytes,
        done: Done[int],
    ) -> None:  # fmt: skip
        """Push ``value`` whenever the schedule matches; answers its next time in ms."""
        queue = self._find(connection, ADMIN, name)
        check_name(schedule.name, "schedule name")
        if not value:
            raise InvalidInput("a value needs at least its type byte")
        self.runtime.check_writable()
        next_ms = queue.engine.set_cron(
            schedule.name, schedule.cron, pack_block([value]), self.now_ms(), schedule.priority,
            schedule.key, schedule.zone,
        )  # fmt: skip
        self.confirm(queue, done, next_ms)

    def drop_cron(self, connection: Connection, name: str, schedule: str, done: Done[None]) -> None:
        queue = self._find(connection, ADMIN, name)
        queue.engine.drop_cron(schedule)
        self.confirm(queue, done, None)

    def crons(self, connection: Connection, name: str) -> Sequence[Schedule]:
        return schedules(self._find(connection, READ, name).engine)


def _check_page(limit: int, offset: int) -> None:
    check_range("limit", limit, MAX_PAGE)
    check_range("offset", offset, 2**53)


def shown(queue: OpenQueue) -> QueueInfo:
    return info(queue.name, queue.engine, queue.losses)
