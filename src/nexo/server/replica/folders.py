"""The brokers' folders of a standby, kept like the leader's."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait

from nexo.errors import Corrupt, NotFound
from nexo.model import Broker
from nexo.replication.replay import AHEAD, LogReplay
from nexo.server.replica.marks import broker_store
from nexo.server.replica.member import Member, now_ms

log = logging.getLogger("nexo.replica")


class Folders:
    """Applies the logs, each in a thread of its own. One thread at a time uses it."""

    def __init__(self, member: Member, brokers: Iterable[Broker] = tuple(Broker)) -> None:
        brokers = tuple(brokers)
        self.heads: dict[str, int] = {}
        """How far the leader is, as its lease says."""
        self.loaded = self.ended = False
        self.lag_ms = 0
        self._marks = member.marks
        self._notes = member.notes
        self._brokers = tuple(brokers)
        self._files = {broker: member.around.make_files() for broker in brokers}
        self._pool = ThreadPoolExecutor(len(Broker), "replay")
        self._readers = ThreadPoolExecutor(2 * AHEAD, "replay-read")
        self._replays = {
            broker: LogReplay(
                broker_store(member.store, broker),
                self._files[broker],
                member.settings.folder(broker),
                self._readers,
            )
            for broker in brokers
        }
        self._begun: set[Broker] = set()
        self._damaged: dict[Broker, Corrupt] = {}

    def step(self, *, to_end: bool = False) -> None:
        """Apply what the leader's lease says it has shipped; with ``to_end`` the whole log.

        All brokers' logs at once; if one fails, that is raised after the others are done. One
        whose log is damaged keeps no other from being served.
        """
        steps = {b: self._pool.submit(self._step, b, to_end=to_end) for b in self._brokers}
        wait(steps.values())
        for broker, step in steps.items():
            if isinstance(error := step.exception(), Corrupt):
                self._damaged[broker] = error
            else:
                self._damaged.pop(broker, None)
        if not self.loaded and self._begun | set(self._damaged) >= set(self._brokers):
            self._marks.end_lineage()
            self.loaded = True
        self.lag_ms = self._behind()
        for step in steps.values():
            step.result()

    def _step(self, broker: Broker, *, to_end: bool) -> None:
        replay = self._replays[broker]
        try:
            self._apply(broker, replay, to_end=to_end)
        except (Corrupt, NotFound) as error:
            raise Corrupt(f"{broker.label}: {error.message}") from None

    def _apply(self, broker: Broker, replay: LogReplay, *, to_end: bool) -> None:
        if broker not in self._begun:
            self._begin(broker, replay)
        replay.head = head = self.heads.get(broker.label, 0)
        while replay.mark.number < head and not self.ended:
            if not replay.step():
                replay.to_end(may_continue=self._may_continue)
                break
        if to_end:
            replay.to_end(may_continue=self._may_continue)

    def close(self) -> None:
        """End the threads; what was applied stays known."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _may_continue(self) -> bool:
        return not self.ended

    def _behind(self) -> int:
        times = [
            replay.time_ms
            for broker, replay in self._replays.items()
            if replay.mark.number < self.heads.get(broker.label, 0)
        ]
        return max(0, now_ms() - min(times)) if times else 0

    def _begin(self, broker: Broker, replay: LogReplay) -> None:
        mark, led = self._marks.get(broker), self._marks.has_led
        if not self._marks.is_half(broker):
            self._files[broker].remove(replay.aside)
        self._marks.follow(broker)
        if mark is not None:
            replay.mark = mark
        else:
            replay.load(keep=True)
            if not led:
                self._files[broker].remove(replay.aside)
            elif self._files[broker].list(replay.aside):
                said = "what this server had as a leader and did not ship is in %s"
                log.warning(said, replay.aside)
        self._begun.add(broker)

    @property
    def applied(self) -> dict[str, int]:
        """The next number of each log to apply."""
        return {b.label: replay.mark.number for b, replay in self._replays.items()}

    def hand_over(self) -> None:
        """Give the brokers' processes their folders' marks; they apply the rest and sync."""
        for broker in self._begun - set(self._damaged):
            self._notes.hand_mark(broker, self._replays[broker].mark)

    def save(self) -> None:
        """Write the folders' marks durably."""
        for broker in self._begun - set(self._damaged):
            self._replays[broker].sync()
            self._marks.put(broker, self._replays[broker].mark)
