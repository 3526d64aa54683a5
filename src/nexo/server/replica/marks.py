"""The notes about replication in a data folder and of a run of the server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import msgspec

from nexo.config import Settings
from nexo.lake.settings import LakeSettings
from nexo.model import Broker
from nexo.replication.log_objects import Mark
from nexo.replication.objects import ObjectsBelow, ObjectStore
from nexo.server.processes.folders import FORMAT_FILE
from nexo.storage.ports import Files
from nexo.storage.sealed import write

FOLDER = "replica"


def broker_store(store: ObjectStore, broker: Broker) -> ObjectStore:
    """Where a broker's log is."""
    return ObjectsBelow(store, f"{broker.label}/")


def small_paths(settings: Settings) -> dict[str, Path]:
    """Files that are shipped whole: users, the lake's catalog, and the folder's format."""
    paths = {
        "users": settings.users_path,
        "format": settings.data_dir.absolute() / FORMAT_FILE,
    }
    catalog = LakeSettings(settings.lake_folder, settings.lake_catalog).catalog_file()
    if catalog is not None:
        paths["catalog"] = catalog
    return paths


def lease_path(run: Path) -> Path:
    """The cells that say until when the lease lasts."""
    return run / "lease.cells"


def shown_path(run: Path, broker: Broker) -> Path:
    """The cells that say how far a broker's log is."""
    return run / f"{broker.label}.cells"


class Term(msgspec.Struct, frozen=True):
    """The facts about the leadership that a broker's process serves in."""

    server: str
    term: str
    lineage: str
    after_ms: int
    """Until when another server may have led, on that server's clock."""


class RunNotes:
    """The supervisor's note to the brokers' processes, for this run of the server only."""

    def __init__(self, run: Path, make_files: Callable[[], Files]) -> None:
        self._run = run
        self._make_files = make_files

    def begin(self, term: Term) -> None:
        """Say which server leads in which term."""
        self._write("term.json", msgspec.json.encode(term))

    def term(self) -> Term:
        return msgspec.json.decode(_content(self._make_files(), self._run / "term.json"), type=Term)

    def hand_mark(self, broker: Broker, mark: Mark) -> None:
        """Give a broker's process the mark of its folder, once."""
        self._write(f"{broker.label}.mark", msgspec.json.encode(mark))

    def handed_mark(self, broker: Broker) -> Mark | None:
        """The mark from `hand_mark`, which is then removed."""
        path, files = self._run / f"{broker.label}.mark", self._make_files()
        try:
            data = _content(files, path)
        except FileNotFoundError:
            return None
        files.remove(path)
        return msgspec.json.decode(data, type=Mark)

    def _write(self, name: str, data: bytes) -> None:
        with closing(self._make_files().open(self._run / name, create=True)) as file:
            file.truncate(0)
            file.write_at(0, [data])


def _content(files: Files, path: Path) -> bytes:
    with closing(files.open(path)) as file:
        return file.read_at(0, file.size())


EQUAL, SERVED, FOLLOWING = "equal", "served", "following"


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Describes a broker's folder; replaced durably before that changes.

    ``equal``: what the log gives below the mark. ``served``: the truth, ahead of the log.
    ``following``: being made from the store, so perhaps half of anything.
    """

    mark: Mark
    state: str


class Marks:
    """The note about replication in a data folder."""

    def __init__(self, settings: Settings, make_files: Callable[[], Files]) -> None:
        """Threads may use it at once, so each call has files of its own."""
        self._folder = settings.data_dir.absolute() / FOLDER
        self._make_files = make_files
        make_files().make_folder(self._folder)

    def server(self) -> str:
        """Names this data folder; made once."""
        return self._text("server", uuid4().hex[:12])

    def lineage(self) -> str:
        """Names the history of these files; new after a takeover."""
        return self._text("lineage", uuid4().hex[:12])

    @property
    def has_led(self) -> bool:
        """Whether a broker wrote to the files since they were last loaded from the store."""
        return "lineage" in self._make_files().list(self._folder)

    def end_lineage(self) -> None:
        """Note that the files were loaded from the store."""
        self._make_files().remove(self._folder / "lineage")

    def _text(self, name: str, new: str) -> str:
        path, files = self._folder / name, self._make_files()
        try:
            return _content(files, path).decode()
        except FileNotFoundError:
            write(files, path, new.encode())
            return new

    def get(self, broker: Broker) -> Mark | None:
        """Where in the log a broker's folder is, if it equals the log up to there."""
        note = self._note(broker)
        return note.mark if note is not None and note.state == EQUAL else None

    def claimed(self, broker: Broker) -> Mark:
        """The end of the log when this folder was last served; no log may begin below it."""
        note = self._note(broker)
        return note.mark if note is not None and note.state == SERVED else Mark()

    def is_half(self, broker: Broker) -> bool:
        """Whether a broker's folder was being made from the store, and is not known to be whole."""
        note = self._note(broker)
        return note is not None and note.state == FOLLOWING

    def put(self, broker: Broker, mark: Mark) -> None:
        """Note that a broker's folder equals the log up to a mark."""
        self._write(broker, _Note(mark, EQUAL))

    def serve(self, broker: Broker, mark: Mark) -> None:
        """Note that a broker's folder is the truth from here on: call before it is written to."""
        self._write(broker, _Note(mark, SERVED))

    def follow(self, broker: Broker) -> None:
        """Note that a broker's folder is made from the store: call before it is changed."""
        if not self.is_half(broker):
            self._write(broker, _Note(Mark(), FOLLOWING))

    def _note(self, broker: Broker) -> _Note | None:
        try:
            data = _content(self._make_files(), self._path(broker))
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(data, type=_Note)
        except msgspec.DecodeError:
            return _old_note(data)

    def _write(self, broker: Broker, note: _Note) -> None:
        write(self._make_files(), self._path(broker), msgspec.json.encode(note))

    def _path(self, broker: Broker) -> Path:
        return self._folder / f"{broker.label}.mark"


def _old_note(data: bytes) -> _Note | None:
    """Read the note of 0.2: the mark alone. A note that is damaged promises nothing."""
    try:
        return _Note(msgspec.json.decode(data, type=Mark), EQUAL)
    except msgspec.DecodeError:
        return _Note(Mark(), FOLLOWING) if data else None
