"""The file that ``nexo backup`` writes and ``nexo restore`` reads.

A tar archive: first ``manifest.json`` (`ArchiveManifest`), then each broker's files as
``<broker>/<path in its folder>``, last ``checksums.json`` with the CRC32C of each. Without the
last one the archive is not whole. A name that ends in ``gz`` is compressed.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, TypeVar

import msgspec
from google_crc32c import extend

from nexo.errors import AlreadyExists, Corrupt, InvalidInput, NexoError
from nexo.model import Broker

FORMAT = 1
_MANIFEST, _CHECKSUMS = "manifest.json", "checksums.json"
_CHUNK = 256 * 1024

T = TypeVar("T")


class ArchiveManifest(msgspec.Struct, frozen=True):
    """The contents of the archive."""

    format: int
    nexo: str
    """The version that wrote it."""
    created_ms: int
    files: dict[str, int]
    """Per broker."""
    size_bytes: int


# -- writing ----------------------------------------------------------------------


class _Joined(io.RawIOBase):
    """Pieces as one file, with their checksum."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""
        self.crc = 0

    def read(self, size: int = -1) -> bytes:
        """Exactly ``size`` bytes, fewer only at the end."""
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self.crc = extend(self.crc, piece)
            self._rest += piece
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


class Writer:
    """An archive that is being written; see `writing`."""

    def __init__(self, archive: tarfile.TarFile, manifest: ArchiveManifest) -> None:
        self._archive = archive
        self._time_s = manifest.created_ms // 1000
        self._sums: dict[str, int] = {}
        self._add(_MANIFEST, msgspec.json.encode(manifest))

    def add(self, name: str, size: int, pieces: Iterator[bytes]) -> None:
        """One file."""
        content = _Joined(pieces)
        self._archive.addfile(self._info(name, size), content)
        self._sums[name] = content.crc

    def finish(self) -> None:
        """Complete the archive."""
        self._add(_CHECKSUMS, msgspec.json.encode(self._sums))

    def _add(self, name: str, data: bytes) -> None:
        self._archive.addfile(self._info(name, len(data)), io.BytesIO(data))

    def _info(self, name: str, size: int) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = size, self._time_s, 0o640
        return info


@contextmanager
def writing(path: Path, manifest: ArchiveManifest) -> Iterator[Writer]:
    """An archive that appears at ``path``, durable, once it is whole."""
    aside = path.with_name(path.name + ".part")
    try:
        if path.exists():
            raise AlreadyExists(f"{path} exists; name another file or remove it")
        # Nobody else may read it: it holds what the brokers hold.
        private = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(private, "wb") as file:
            mode = "w:gz" if path.name.endswith("gz") else "w"
            with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
                writer = Writer(archive, manifest)
                yield writer
                writer.finish()
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    except NexoError:
        raise  # some are also errors of the operating system's kind
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            aside.unlink()


# -- reading ----------------------------------------------------------------------


class ArchiveReader:
    """An archive's files, in order; see `reading`."""

    def __init__(self, archive: tarfile.TarFile, *, damaged_too: bool) -> None:
        self._archive = archive
        self._damaged_too = damaged_too
        self.damage: list[str] = []
        """Files that `extract` found damaged or missing, if they are wanted too."""
        self.manifest = self._json(self._next(), _MANIFEST, ArchiveManifest)
        if self.manifest.format != FORMAT:
            raise InvalidInput(f"format {self.manifest.format} is newer than this version reads")

    def extract(self, folders: dict[Broker, Path]) -> Iterator[int]:
        """Write every file below its broker's folder; yields their sizes.

        `Corrupt` if the archive is cut short or a file is not what was saved; what was
        written by then is the caller's to remove. If what is damaged is wanted too, all that can be
        read stays: what the files hold has checks of its own.
        """
        sums: dict[str, int] = {}
        try:
            expected = yield from self._files(folders, sums)
        except (tarfile.TarError, EOFError, NexoError) as error:
            if not self._damaged_too:
                raise
            self.damage.append(f"what comes after {next(reversed(sums), _MANIFEST)}: {error}")
            return
        self.damage = sorted({name for name, _ in sums.items() ^ expected.items()})
        if self.damage and not self._damaged_too:
            names = ", ".join(self.damage[:5])
            raise Corrupt(f"the backup is damaged: {names}; --damaged restores what can be read")

    def _files(
        self, folders: dict[Broker, Path], sums: dict[str, int]
    ) -> Generator[int, None, dict[str, int]]:
        """Write the files and note their sums; returns those that they had."""
        while (info := self._next()).name != _CHECKSUMS:
            target = _target(info, folders)
            target.parent.mkdir(parents=True, exist_ok=True)
            sums[info.name] = self._write(info, target)
            yield info.size
        return self._json(info, _CHECKSUMS, dict[str, int])

    def _write(self, info: tarfile.TarInfo, target: Path) -> int:
        crc = 0
        with target.open("xb") as file:
            content = self._content(info)
            while chunk := content.read(_CHUNK):
                crc = extend(crc, chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        return crc

    def _next(self) -> tarfile.TarInfo:
        info = self._archive.next()
        if info is None:
            raise Corrupt("the backup is cut short")
        return info

    def _content(self, info: tarfile.TarInfo) -> IO[bytes]:
        content = self._archive.extractfile(info)
        if content is None:
            raise InvalidInput(f"{info.name} is not a plain file: this is no backup of Nexo")
        return content

    def _json(self, info: tarfile.TarInfo, name: str, type_: type[T]) -> T:
        if info.name != name:
            raise InvalidInput(f"it has {info.name} instead of {name}: this is no backup of Nexo")
        try:
            return msgspec.json.decode(self._content(info).read(), type=type_)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"{name} is malformed: {error}") from None


@contextmanager
def reading(path: Path, *, damaged_too: bool = False) -> Iterator[ArchiveReader]:
    """Open an archive; whatever is wrong with it is raised as a `NexoError`.

    With ``damaged_too``, a file whose header is damaged is passed over.
    """
    try:
        with tarfile.open(path, "r|*", ignore_zeros=damaged_too) as archive:
            yield ArchiveReader(archive, damaged_too=damaged_too)
    except (tarfile.TarError, EOFError) as error:
        raise Corrupt(f"{path} is damaged or no backup: {error}") from None
    except OSError as error:
        raise InvalidInput(f"{error.filename or path}: {error.strerror or error}") from None


def _target(info: tarfile.TarInfo, folders: dict[Broker, Path]) -> Path:
    """The path of a restored file: always in its broker's folder, whatever the archive says."""
    label, *parts = PurePosixPath(info.name).parts
    folder = next((path for broker, path in folders.items() if broker.label == label), None)
    if folder is None or not parts or ".." in parts or not info.isreg():
        raise InvalidInput(f"{info.name} has no place in a backup of Nexo")
    return folder.joinpath(*parts)
