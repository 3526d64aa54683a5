"""How a server takes the lead of one broker's log, before the broker opens its files.

With a mark the folder is what the log gives: apply what is new, then claim. Without one the
folder holds more than the log, as after a kill of the leader: if the log still ends with this
server's own objects, its files are uploaded as a manifest that the claim names. If another server
has led since, the folder is superseded: it must be made again from the store. A folder that was
being made, and may be half of anything, is made again too: it is never uploaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nexo.errors import Corrupt
from nexo.replication import bases
from nexo.replication.log_objects import FORMAT, Mark, server_name
from nexo.replication.objects import (
    LOG,
    RESET,
    AlreadyThere,
    ObjectStore,
    StoreFailed,
    log_key,
    next_number,
    numbered,
)
from nexo.replication.replay import ASIDE, LogReplay
from nexo.replication.shipping import LeadLost, Shipper
from nexo.storage.ports import Files

_LEAP = 1_000_000
"""More than the log objects that a leader makes between two notes of how far it is."""

log = logging.getLogger("nexo.replica")


class Superseded(Exception):
    """Another server has led since, so this folder must not be served."""


def log_end(store: ObjectStore) -> Mark:
    """The end of a log, and who wrote its last object."""
    end = next_number(store, LOG)
    if not end:
        return Mark()
    key = log_key(end - 1)
    data = store.get(key)
    if data is None:
        raise StoreFailed(f"{key} was listed and is not there")
    group = FORMAT.unpack(data, end - 1)
    return Mark(end, group.epoch, group.writer)


class Taking:
    """Takes the lead of one log for the writer ``server/…``; retries what is unclear."""

    def __init__(
        self,
        store: ObjectStore,
        files: Files,
        root: Path,
        writer: str,
        now_ms: Callable[[], int],
        pause: Callable[[], None],
        may_claim: Callable[[], bool] = lambda: True,
    ) -> None:
        """``pause`` waits a little before the next try.

        ``may_claim``: whether the server's lease lasts; else a claim could take the log away from
        its next leader.
        """
        self._store = store
        self._files = files
        self._root = root
        self._writer = writer
        self._now_ms = now_ms
        self._pause = pause
        self._may_claim = may_claim
        self._replay: LogReplay | None = None
        self._is_half = False
        self._claimed = Mark()
        self.found_loss = False
        """Whether the store had lost what it had, so that all files were uploaded."""

    def take(
        self,
        mark: Mark | None,
        *,
        is_sure: bool = False,
        is_half: bool = False,
        claimed: Mark | None = None,
    ) -> tuple[Shipper, bases.Manifest | None]:
        """A shipper that leads, and the base that was made on the way, if any.

        ``is_sure``: since the mark was noted, the folder was changed only by applying the log.
        ``is_half``: the folder was being made from the store. ``claimed``: how far the log was
        when the folder was last served; should the store have lost it, the log goes on from there.
        """
        self._is_half = is_half
        self._claimed = claimed or Mark()
        while True:
            try:
                if is_sure and mark is not None and self._replay is None:
                    return self._follow_and_claim(mark), None
                return self._try(mark)
            except StoreFailed as error:
                log.warning("the object store does not answer, trying again: %s", error)
                self._pause()

    def _try(self, mark: Mark | None) -> tuple[Shipper, bases.Manifest | None]:
        if self._replay is not None:
            return self._claim_after(self._replay), None
        end = log_end(self._store)
        is_there = bases.is_restorable(self._store)
        if mark is not None and is_there and self._continues(mark, end):
            return self._follow_and_claim(mark), None
        is_empty = bool(end.number) and not self._files.list(self._root)
        if self._is_half or (is_empty and (is_there or not self._claimed.number)):
            if not is_there:
                state = "half made" if self._is_half else "empty"
                raise Corrupt(
                    f"the object store has neither a base nor the log's beginning, and "
                    f"{self._root} is {state}: nothing can be served; look into "
                    f"{self._root}{ASIDE}"
                )
            return self._load_and_claim(), None
        if end.number and mark is None and not self._is_own(end.writer):
            raise Superseded(f"{end.writer} has led since, to object {end.number}")
        before = self._claimed if mark is None else mark
        if before.number > end.number or (before.number and not is_there):
            log.error("the object store has lost what it had: uploading %s again", self._root)
            self.found_loss = True
            end = _past(before, end)
        return self._reset(end)

    def _continues(self, mark: Mark, end: Mark) -> bool:
        """Whether the log leads from a mark to its end."""
        return mark.number == end.number or (
            mark.number < end.number and not self._is_own(end.writer)
        )

    def _is_own(self, writer: str) -> bool:
        return server_name(writer) == server_name(self._writer)

    def _follow_and_claim(self, mark: Mark) -> Shipper:
        self._replay = LogReplay(self._store, self._files, self._root)
        self._replay.mark = mark
        return self._claim_after(self._replay)

    def _load_and_claim(self) -> Shipper:
        log.warning("%s is empty: loading it from the object store", self._root)
        replay = LogReplay(self._store, self._files, self._root)
        replay.load(keep=self._is_half)
        self._replay = replay
        return self._claim_after(replay)

    def _claim_after(self, replay: LogReplay) -> Shipper:
        while True:
            replay.to_end()
            replay.sync()
            shipper = Shipper(self._writer, replay.mark)
            if not self._put(shipper):
                continue
            if self._is_end(shipper):
                return shipper
            replay.load()  # the number was free because a base had replaced what had it

    def _reset(self, end: Mark) -> tuple[Shipper, bases.Manifest | None]:
        """Upload the files as they are, and claim with them."""
        maker = self._writer.replace("/", "-")
        key = f"{numbered(RESET, end.number)}-{maker}"
        shipper = Shipper(self._writer, end, reset=key)
        before = bases.newest(self._store)
        if before is not None and not bases.is_whole(self._store, before):
            before = None
        stored, folders = bases.upload(
            self._store, self._files, bases.walk(self._files, self._root), maker, before
        )
        manifest = bases.Manifest(end.number + 1, shipper.epoch, stored, folders, self._now_ms())
        with suppress(AlreadyThere):
            self._store.create(key, bases.FORMAT.pack(manifest, manifest.number))
        if not self._put(shipper) or not self._is_end(shipper):
            raise Superseded(f"another server wrote object {end.number} just now")
        return shipper, bases.publish(self._store, manifest)

    def _is_end(self, shipper: Shipper) -> bool:
        """Whether the claim is the log's newest object.

        Who sleeps before the put may find a number free that others had used, and deleted.
        """
        while True:
            try:
                return not self._store.list(LOG, log_key(shipper.number - 1))
            except StoreFailed as error:
                log.warning("the log's end is unclear, looking again: %s", error)
                self._pause()

    def _put(self, shipper: Shipper) -> bool:
        """Put the claim; False if another object has its number."""
        while not self._may_claim():
            log.warning("the lease is not renewed: the claim waits")
            self._pause()
        put = shipper.next_put(self._now_ms())
        assert put is not None, "a claim is always due"
        while True:
            try:
                self._store.create(put.key, put.data)
                shipper.created()
                return True
            except AlreadyThere:
                found = self._store.get(put.key)
                if found is None:  # refused, though nothing is there
                    self._pause()
                    continue
                try:
                    shipper.refused(found)
                except LeadLost:
                    return False
                return True
            except StoreFailed as error:
                log.warning("the claim is unclear, trying it again: %s", error)
                self._pause()


def _past(before: Mark, end: Mark) -> Mark:
    """A mark past all numbers and epochs that were ever used, though the store lost the last."""
    return Mark(before.number + end.number + _LEAP, max(before.epoch, end.epoch), before.writer)
