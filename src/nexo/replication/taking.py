"""How a server takes the lead of one broker's log, before the broker opens its files.

With a mark the folder is what the log gives: apply what is new, then claim. Without one the
folder holds more than the log, as after a kill of the leader: if the log still ends with this
server's own objects, its files are uploaded as a manifest that the claim names. If another server
has led since, the folder is superseded: it must be made again from the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nexo.replication import bases
from nexo.replication.log_objects import FORMAT, Mark
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
from nexo.replication.replay import LogReplay
from nexo.replication.shipping import LeadLost, Shipper
from nexo.storage.ports import Files

log = logging.getLogger("nexo.replica")


class Superseded(Exception):
    """Another server has led since, so this folder must not be served."""


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
    ) -> None:
        """``pause`` waits a little before the next try."""
        self._store = store
        self._files = files
        self._root = root
        self._writer = writer
        self._now_ms = now_ms
        self._pause = pause
        self._replay: LogReplay | None = None

    def take(
        self, mark: Mark | None, *, is_sure: bool = False
    ) -> tuple[Shipper, bases.Manifest | None]:
        """A shipper that leads, and the base that was made on the way, if any.

        ``is_sure``: since the mark was noted, the folder was changed only by applying the log.
        """
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
        end = self._end()
        if mark is not None and (mark.number == end.number or not self._is_own(end.writer)):
            return self._follow_and_claim(mark), None
        if end.number and not self._files.list(self._root):
            return self._load_and_claim(), None
        if end.number and not self._is_own(end.writer):
            raise Superseded(f"{end.writer} has led since, to object {end.number}")
        return self._reset(end)

    def _is_own(self, writer: str) -> bool:
        return writer.partition("/")[0] == self._writer.partition("/")[0]

    def _end(self) -> Mark:
        """The end of the log, and who wrote its last object."""
        end = next_number(self._store, LOG)
        if not end:
            return Mark()
        key = log_key(end - 1)
        data = self._store.get(key)
        if data is None:
            raise StoreFailed(f"{key} was listed and is not there")
        group = FORMAT.unpack(data, end - 1)
        return Mark(end, group.epoch, group.writer)

    def _follow_and_claim(self, mark: Mark) -> Shipper:
        self._replay = LogReplay(self._store, self._files, self._root)
        self._replay.mark = mark
        return self._claim_after(self._replay)

    def _load_and_claim(self) -> Shipper:
        log.warning("%s is empty: loading it from the object store", self._root)
        replay = LogReplay(self._store, self._files, self._root)
        replay.load()
        self._replay = replay
        return self._claim_after(replay)

    def _claim_after(self, replay: LogReplay) -> Shipper:
        while True:
            replay.to_end()
            replay.sync()
            shipper = Shipper(self._writer, replay.mark)
            if self._put(shipper):
                return shipper

    def _reset(self, end: Mark) -> tuple[Shipper, bases.Manifest | None]:
        """Upload the files as they are, and claim with them."""
        maker = self._writer.replace("/", "-")
        key = f"{numbered(RESET, end.number)}-{maker}"
        shipper = Shipper(self._writer, end, reset=key)
        before = bases.newest(self._store)
        stored, folders = bases.upload(
            self._store, self._files, bases.walk(self._files, self._root), maker, before
        )
        manifest = bases.Manifest(end.number + 1, shipper.epoch, stored, folders, self._now_ms())
        with suppress(AlreadyThere):
            self._store.create(key, bases.FORMAT.pack(manifest, manifest.number))
        if not self._put(shipper):
            raise Superseded(f"another server wrote object {end.number} just now")
        return shipper, bases.publish(self._store, manifest)

    def _put(self, shipper: Shipper) -> bool:
        """Put the claim; False if another object has its number."""
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
