"""Bases: all files as of one number, so that the log before it can go.

A base is a manifest of files and the contents that it names. Contents are uploaded under their
hash; sealed segments never change, so each is uploaded once. The names must be those of one
moment, at which the log objects below the number end. Contents may be newer, if the manifest is
created after the log has all that was written until the last of them was read: operations name
positions, so doing them again to what has them already gives the same bytes.

What may be deleted is decided by the one process that makes bases, between two of them. A
manifest uses contents again only from the newest manifest before it, which no such decision
ever frees, and uploads others under the name of its maker. So a process that slept through a
takeover and continues to delete cannot delete what its successor uses.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Set
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from nexo.errors import Corrupt
from nexo.replication import fence
from nexo.replication.log_objects import FORMAT as GROUP
from nexo.replication.log_objects import term_name
from nexo.replication.objects import (
    BASE,
    FILE,
    LOG,
    RESET,
    AlreadyThere,
    ObjectFormat,
    ObjectStore,
    number_of,
    numbered,
)
from nexo.storage.disk.freezing import NOT_DATA
from nexo.storage.ports import Files

log = logging.getLogger("nexo.replica")

KEPT = 2
"""Bases kept: the newest, and one in case that is damaged."""


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """One file of a base."""

    path: str
    size: int
    sha: str
    maker: str

    @property
    def key(self) -> str:
        """Where its content is."""
        return f"{FILE}{self.maker}/{self.sha}"


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The files as of all log objects below ``number``."""

    number: int
    epoch: int
    """Of the last of these objects."""
    files: list[Stored]
    folders: list[str]
    time_ms: int = 0
    """The maker's clock, for a restore to a chosen time."""


FORMAT = ObjectFormat(b"NEXOBAS\0", Manifest, "the base at")


def upload(
    store: ObjectStore,
    files: Files,
    found: Iterable[tuple[str, Path | None]],
    maker: str,
    before: Manifest | None,
    changed: Set[str] | None = None,
) -> tuple[list[Stored], list[str]]:
    """Upload what ``before``, the newest manifest, does not have; returns files and folders.

    ``found`` has the name and path of each file, and the name of each folder, with None.
    ``maker`` names this process, and no other one ever.
    Files that are not among the ``changed`` are as that manifest says, and are not read.
    """
    known = {each.sha: each for each in before.files} if before is not None else {}
    same = {} if changed is None or before is None else {each.path: each for each in before.files}
    stored: list[Stored] = []
    folders: list[str] = []
    for name, path in found:
        if path is None:
            folders.append(name)
        elif name in same and name not in (changed or ()):
            stored.append(same[name])
        else:
            stored.append(_upload(store, files, path, name, maker, known))
    return stored, folders


def publish(store: ObjectStore, manifest: Manifest) -> Manifest:
    """Create the manifest; one that is there already must be of the same files."""
    try:
        store.create(numbered(BASE, manifest.number), FORMAT.pack(manifest, manifest.number))
    except AlreadyThere:
        found = load(store, manifest.number)
        if {(f.path, f.sha) for f in found.files} != {(f.path, f.sha) for f in manifest.files}:
            raise Corrupt(
                f"the base at {manifest.number} holds other files than this folder"
            ) from None
        return found
    return manifest


def _upload(
    store: ObjectStore, files: Files, path: Path, name: str, maker: str, known: dict[str, Stored]
) -> Stored:
    data = _content(files, path)
    sha = sha256(data).hexdigest()
    if (again := known.get(sha)) is not None:
        return Stored(name, len(data), sha, again.maker)
    stored = known[sha] = Stored(name, len(data), sha, maker)
    with suppress(AlreadyThere):  # by an earlier try
        store.create(stored.key, data)
    return stored


def newest(store: ObjectStore, until_ms: int | None = None) -> Manifest | None:
    """The newest sound base, or the newest that was made until a time; None if there is none."""
    return next(sound(store, until_ms), None)


def sound(store: ObjectStore, until_ms: int | None = None) -> Iterator[Manifest]:
    """The manifests that are not damaged, newest first; of a time, if that is given."""
    for manifest in _sound(store, store.list(BASE)):
        if until_ms is None or manifest.time_ms <= until_ms:
            yield manifest


def _sound(store: ObjectStore, keys: list[str]) -> Iterator[Manifest]:
    """The bases of these keys that are not damaged, newest first."""
    for key in reversed(keys):
        with suppress(Corrupt):
            yield load(store, number_of(key))


def load(store: ObjectStore, number: int) -> Manifest:
    """The manifest at a number; `Corrupt` if it is missing or damaged."""
    data = store.get(numbered(BASE, number))
    if data is None:
        raise Corrupt(f"there is no base at {number}")
    manifest = FORMAT.unpack(data, number)
    if manifest.number != number:
        raise Corrupt(f"the base at {number} says that it is at {manifest.number}")
    return manifest


def restore(
    store: ObjectStore, manifest: Manifest, files: Files, root: Path, near: Path | None = None
) -> None:
    """Write the files of a base below ``root``, which should be empty, and sync them.

    Files below ``near`` that have the content already are copied instead of downloaded.
    """
    files.make_folder(root)
    for name in manifest.folders:
        files.make_folder(_below(root, name))
    for stored in manifest.files:
        data = _near(files, near, stored) or store.get(stored.key)
        if data is None or len(data) != stored.size:
            state = "missing" if data is None else f"{len(data)} bytes long, not {stored.size}"
            raise Corrupt(f"{stored.path} of the base at {manifest.number} is {state}")
        if sha256(data).hexdigest() != stored.sha:  # what it holds has checks of its own
            log.error("%s: the object %s is damaged; it is used", stored.path, stored.key)
        with closing(files.open(_below(root, stored.path), create=True)) as file:
            file.truncate(0)
            file.write_at(0, [data])
    files.sync_all(root)


def _near(files: Files, near: Path | None, stored: Stored) -> bytes | None:
    if near is None:
        return None
    try:
        data = _content(files, _below(near, stored.path))
    except OSError:
        return None
    return data if len(data) == stored.size and sha256(data).hexdigest() == stored.sha else None


def collect(store: ObjectStore, since_ms: int | None = None) -> int:
    """Delete what no kept base needs; returns how many objects. See the module for who may.

    Kept are the newest two, and with ``since_ms`` as many as a restore to any time since needs.
    """
    contents = store.list(FILE)  # before the manifests: what is uploaded later is not in it
    bases = store.list(BASE)
    kept: list[Manifest] = []
    for manifest in _sound(store, bases):
        kept.append(manifest)
        if len(kept) >= KEPT and (since_ms is None or manifest.time_ms <= since_ms):
            break
    if not kept:
        return 0
    needed = {stored.key for manifest in kept for stored in manifest.files}
    oldest = min(manifest.number for manifest in kept)
    gone: list[str] = []
    for prefix, keys in ((BASE, bases), (RESET, store.list(RESET))):
        gone += [key for key in keys if key < numbered(prefix, oldest)]
    gone += _needless_log(store, oldest)
    gone += [key for key in contents if key not in needed]  # after the bases that name them
    store.delete(gone)
    return len(gone)


def _needless_log(store: ObjectStore, oldest: int) -> list[str]:
    """The log objects below a base, but for those that fence and the newest of all."""
    keys = store.list(LOG)[:-1]
    below = [key for key in keys if key < numbered(LOG, oldest)]

    def term_of(key: str) -> str:
        data = store.get(key)
        try:
            return key if data is None else term_name(GROUP.unpack(data, number_of(key)).writer)
        except Corrupt:
            return key

    fencing = set(fence.first_of_each(below, term_of))
    return [key for key in below if key not in fencing]


def is_restorable(store: ObjectStore) -> bool:
    """Whether the store has a base, or the log from its beginning."""
    if newest(store) is not None:
        return True
    return begins(store)


def begins(store: ObjectStore) -> bool:
    """Whether the log's first object is there, or its oldest one brings all files itself."""
    first = next(iter(store.list(LOG)), None)
    if first is None or number_of(first) == 0:
        return first is not None
    data = store.get(first)
    try:
        return data is not None and bool(GROUP.unpack(data, number_of(first)).reset)
    except Corrupt:
        return False


def is_whole(store: ObjectStore, manifest: Manifest) -> bool:
    """Whether the store has all contents that a base names."""
    return {stored.key for stored in manifest.files} <= set(store.list(FILE))


def walk(files: Files, folder: Path, within: str = "") -> Iterator[tuple[str, Path | None]]:
    """Everything below a folder for `upload`, folders before what they hold."""
    for name in files.list(folder):
        if name.startswith(NOT_DATA):
            continue
        path = folder / name
        try:
            files.open(path).close()
        except (IsADirectoryError, FileNotFoundError):
            yield f"{within}{name}", None
            yield from walk(files, path, f"{within}{name}/")
        else:
            yield f"{within}{name}", path


def _content(files: Files, path: Path) -> bytes:
    with closing(files.open(path)) as file:
        return file.read_at(0, file.size())


def _below(root: Path, name: str) -> Path:
    if name.startswith("/") or ".." in name.split("/"):
        raise Corrupt(f"a base names {name!r}, outside of the data folder")
    return root / name
