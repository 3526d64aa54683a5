"""Keeps a folder equal to a broker's files elsewhere: the newest base, then the log.

A `Mark` says that a folder is exactly what the log objects below a number give. It is written
when a standby or a leader stops cleanly, and removed before the folder is changed again. A folder
without one is rebuilt from the store; files that it has already are copied, not downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path

from nexo.errors import Corrupt, NotFound
from nexo.replication import bases
from nexo.replication.log_objects import FORMAT, Mark
from nexo.replication.objects import BASE, LOG, ObjectStore, log_key, number_of
from nexo.storage.disk import recording
from nexo.storage.ports import Files

AHEAD = 8
"""Objects requested at a time."""
ASIDE = ".superseded"


class ReadAhead:
    """Gets the objects of a log; the next ones are under way while one is applied.

    A store may take 20 ms per request, and the leader may make one object in that time for each
    broker: whoever asks for one after the other never catches up.
    """

    def __init__(self, store: ObjectStore, readers: Executor | None) -> None:
        self._store = store
        self._readers = readers
        self._coming: dict[int, Future[bytes | None]] = {}

    def get(self, number: int, head: int) -> bytes | None:
        """The object of a number, if there is one; those below ``head`` are known to be there."""
        if self._readers is not None:
            self._ask(self._readers, range(number, min(head, number + AHEAD)))
        coming = self._coming.pop(number, None)
        return self._store.get(log_key(number)) if coming is None else coming.result()

    def _ask(self, readers: Executor, wanted: range) -> None:
        self._coming = {n: coming for n, coming in self._coming.items() if n in wanted}
        for number in wanted:
            if number not in self._coming:
                self._coming[number] = readers.submit(self._store.get, log_key(number))


class LogReplay:
    """Applies one broker's log to a folder. Everything may raise `StoreFailed`."""

    def __init__(
        self, store: ObjectStore, files: Files, root: Path, readers: Executor | None = None
    ) -> None:
        """With ``readers``, objects below `head` are fetched ahead, several at once."""
        self._store = store
        self._ahead = ReadAhead(store, readers)
        self.head = 0
        """The log has all objects below this number."""
        self.aside = root.with_name(root.name + ASIDE)
        """Keeps what a replaced leader had and did not ship."""
        self._files = files
        self._root = root
        self.mark = Mark()
        """The folder's position in the log; set it if the folder is already at a mark."""
        self.time_ms = 0
        """The writer's clock, of the last object that was applied."""
        self._whole = True
        """False while the folder matches no position of the log."""

    def load(self, until_ms: int | None = None, *, keep: bool = False) -> None:
        """Make the folder from the newest sound base, or empty it if there never was one.

        With ``keep``, what was in it is left beside it in `aside`. Raises `Corrupt` if something
        is missing from each base.
        """
        self._whole = False
        keep = keep or bool(self._files.list(self.aside))
        self._set_aside()
        damage: Corrupt | None = None
        for manifest in bases.sound(self._store, until_ms):
            try:
                bases.restore(self._store, manifest, self._files, self._root, self.aside)
            except Corrupt as error:
                damage = damage or error
                self._empty()
            else:
                self.mark = Mark(manifest.number, manifest.epoch)
                break
        else:
            self.mark = self._beginning(damage)
        self._whole = True
        if not keep:
            self._files.remove(self.aside)

    def _beginning(self, damage: Corrupt | None) -> Mark:
        """Before the first object, which must be the log's first or bring all files itself."""
        keys = self._store.list(LOG)
        first = number_of(keys[0]) if keys else 0
        has_gaps = bool(keys) and len(keys) <= number_of(keys[-1]) - first
        if has_gaps and self._store.list(BASE):  # what they replaced is deleted
            raise damage or NotFound("the log before that time is deleted: choose a later one")
        data = self._store.get(log_key(first)) if first else None
        if first and (data is None or not FORMAT.unpack(data, first).reset):
            raise damage or NotFound("the log before that time is deleted: choose a later one")
        self._files.make_folder(self._root)
        return Mark(first)

    def _empty(self) -> None:
        for name in self._files.list(self._root):
            self._files.remove(self._root / name)

    def _set_aside(self) -> None:
        """Move all names aside; of one that is there already the newer is from an earlier try."""
        kept = set(self._files.list(self.aside))
        names = self._files.list(self._root)
        if names:
            self._files.make_folder(self.aside)
        for name in names:
            if name in kept:
                self._files.remove(self._root / name)
            else:
                self._files.rename(self._root / name, self.aside / name)

    def step(self, until_ms: int | None = None) -> bool:
        """Apply the next object; False if there is none yet, or it is later than ``until_ms``."""
        if not self._whole:
            self.load()
        number = self.mark.number
        data = self._ahead.get(number, self.head)
        if data is None:
            return False
        if until_ms is not None and FORMAT.unpack(data, number).time_ms > until_ms:
            return False
        try:
            group, mark = self.mark.take(data)
        except Corrupt as error:
            if until_ms is not None:
                raise
            self._skip_to_base(Corrupt(f"{log_key(number)}: {error.message}"), number + 1)
            return True
        self.mark, self.time_ms = mark, group.time_ms
        self._whole = False
        if group.reset and not self._reset(group.reset):
            self._skip_to_base(_missing(group.reset), mark.number)
            return True
        recording.apply(group.operations, self._files, self._root)
        self._whole = True
        return True

    def _reset(self, key: str) -> bool:
        """Rebuild the folder from the claimant's manifest; False if that is deleted."""
        data = self._store.get(key)
        if data is None:
            return False
        self._set_aside()
        manifest = bases.FORMAT.unpack(data, self.mark.number)
        bases.restore(self._store, manifest, self._files, self._root, self.aside)
        self._files.remove(self.aside)
        return True

    def to_end(
        self, until_ms: int | None = None, may_continue: Callable[[], bool] = lambda: True
    ) -> None:
        """Apply all there is; if the next object was deleted, continue from the newest base."""
        while may_continue():
            if self.step(until_ms):
                continue
            next_key = log_key(self.mark.number)
            if not self._store.list(LOG, next_key):
                return
            if self._store.get(next_key) is not None:  # created just now, or too late
                if until_ms is not None:
                    return
            elif until_ms is not None:
                raise _missing(next_key)
            else:
                self._skip_to_base(_missing(next_key), self.mark.number + 1)

    def _skip_to_base(self, error: Corrupt, number: int) -> None:
        """Go on from the newest base if it is of this number or later, else raise the error."""
        manifest = bases.newest(self._store)
        if manifest is None or manifest.number < number:
            raise error
        self.load()

    def sync(self) -> None:
        """Make the folder survive power loss."""
        self._files.sync_all(self._root)


def _missing(key: str) -> Corrupt:
    return Corrupt(f"{key} is missing from the object store, and no base is past it")
