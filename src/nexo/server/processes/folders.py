"""The folders of a server: the data folder, its format and locks, and the folder of one run.

The data folder has a file ``nexo.lock``, which also says who holds it. A broker's folder may lie
anywhere, even in the data folder of another server, so each is locked too: the folder itself,
since a broker takes every file in it for its own.

The file ``nexo.format`` is ``{"format": 2, "nexo": "0.2.0"}``, so that an older server refuses a
newer folder. It is written before the first broker opens its files. Version 0.1.0 wrote none: that
is format 1.

The run folder has the sockets between the server's processes, and their token. Its owner holds a
lock on the folder itself. A server that was killed cannot remove its folder, so the next one to
start removes every folder that nobody holds.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from nexo.config import Settings
from nexo.errors import ConfigError
from nexo.model import Broker
from nexo.server.processes.system import take_lock
from nexo.storage import sealed
from nexo.storage.disk.files import OsFiles
from nexo.version import __version__

log = logging.getLogger("nexo.supervisor")

FILE = "nexo.lock"
ENDING_S = 60.0
"""How long a start waits for the processes of a server that was killed: they end by themselves."""
_UNKNOWN = "a process that is starting or stopping"


class FolderInUse(ConfigError):
    """Another process holds a folder."""


class FolderLock:
    """The folders of one server, held until every process that inherited ``fds`` has ended."""

    def __init__(self, settings: Settings, wait_s: float = 5.0, *, touch: bool = True) -> None:
        """Lock those that exist; ``touch`` makes the data folder and its file, for `write`.

        A `ConfigError` names the setting that does not work.
        """
        self.fds: list[int] = []
        self.left_by = ""
        """The previous server, if it ended without a stop."""
        self._touch = touch
        self._made: list[Path] = []
        try:
            self._take_data_dir(settings.data_dir.absolute(), wait_s)
            for broker in Broker:
                self._take_broker(settings, broker, wait_s)
        except ConfigError:
            self.undo()
            raise

    def _take_data_dir(self, folder: Path, wait_s: float) -> None:
        file = folder / FILE
        absent = absent_paths([file])
        if self._touch:
            self._made += absent[1:]
            make_folder(folder, "data_dir")
        elif absent:
            return
        flags = os.O_RDWR | os.O_CREAT if self._touch else os.O_RDONLY
        with _naming("data_dir", folder):
            self.fds.append(os.open(file, flags | os.O_CLOEXEC, 0o644))
        if wait_s and _has_ended(file):
            wait_s = ENDING_S
        _acquire(self.fds[-1], f"data_dir = {folder}", wait_s, _holder(file) or _UNKNOWN)
        if not _is_open(file, self.fds[-1]):  # its holder removed it, so lock a new one
            self._let_go()
            self._take_data_dir(folder, wait_s)
        else:
            self._made[:0] = absent[:1]
            self.left_by = _holder(file)

    def _take_broker(self, settings: Settings, broker: Broker, wait_s: float) -> None:
        folder, setting = settings.folder(broker), settings.folder_setting(broker)
        if not folder.exists():
            return
        with _naming(setting, folder):
            self.fds.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        _acquire(self.fds[-1], f"{setting} = {folder}", wait_s, "it has another data_dir")

    def write(self, **facts: object) -> None:
        """Leave facts for tools that look at the data folder: process id and ports."""
        os.ftruncate(self.fds[0], 0)
        os.pwrite(self.fds[0], json.dumps(facts).encode(), 0)

    def close(self) -> None:
        if self._touch:
            os.ftruncate(self.fds[0], 0)
        self._let_go()

    def undo(self) -> None:
        """Release the locks, and remove the files and folders made for them."""
        for path in self._made:
            with suppress(OSError):  # others may have put something there
                path.rmdir() if path.is_dir() else path.unlink()
        self._let_go()

    def _let_go(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


def _acquire(fd: int, what: str, wait_s: float, holder: str) -> None:
    if take_lock(fd):
        return
    in_use = f"{what} is in use by another Nexo server: {holder}"
    if wait_s:
        log.warning("waiting: %s", in_use)
    deadline = time.monotonic() + wait_s
    while not take_lock(fd):
        if time.monotonic() > deadline:
            raise FolderInUse(in_use)
        time.sleep(0.02)


def _is_open(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _has_ended(path: Path) -> bool:
    """Whether the server that wrote the facts is gone, so that only its processes hold the lock."""
    try:
        os.kill(int(json.loads(path.read_bytes())["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return False


def _holder(path: Path) -> str:
    try:
        facts = json.loads(path.read_bytes())
        return f"process {facts['pid']} on {facts['host']}:{facts['port']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def holds_data(settings: Settings) -> bool:
    """Whether a server with these settings has ever run."""
    return any(settings.folder(broker).is_dir() for broker in Broker)


def absent_paths(paths: Iterable[Path]) -> list[Path]:
    """The missing ones of these and of the folders above them, deepest first."""
    absent = {part for path in paths for part in (path, *path.parents) if not part.exists()}
    return sorted(absent, key=lambda path: len(path.parts), reverse=True)


def make_folders(settings: Settings) -> None:
    """Make the folders of a server that starts, durably; `ConfigError` names a bad setting."""
    make_folder(settings.data_dir.absolute(), "data_dir")
    for broker in Broker:
        make_folder(settings.folder(broker), settings.folder_setting(broker))


def make_folder(folder: Path, setting: str) -> None:
    """Make one folder that ``setting`` names, durably."""
    files = OsFiles()
    with _naming(setting, folder):
        files.make_folder(folder)
        files.sync_names(folder.parent)
        os.listdir(folder)  # noqa: PTH208 - a file of that name is no folder


@contextmanager
def _naming(setting: str, folder: Path) -> Iterator[None]:
    """Raise an `OSError` of a folder as a `ConfigError` that names its setting."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{setting} = {folder}: {error.strerror}") from None


FORMAT_FILE = "nexo.format"
FORMAT = 2
"""Increases whenever older servers cannot read, or would misread, what this one writes."""


class Stamp(msgspec.Struct, frozen=True):
    """The contents of the file; fields unknown here are ignored."""

    format: int
    nexo: str = "an unknown version"


def stamp_format(settings: Settings) -> None:
    """Mark the data folder as ours; `ConfigError` if a newer version has written it."""
    file = settings.data_dir.absolute() / FORMAT_FILE
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Stamp)
    except (OSError, msgspec.MsgspecError):
        found = Stamp(0)  # every file has a version of its own: nothing is read wrongly
    if found.format > FORMAT:
        raise ConfigError(
            f"data_dir = {settings.data_dir} was written by Nexo {found.nexo}, and this is "
            f"{__version__}, which cannot read it: start the newer version, or restore a backup"
        )
    if found.format < FORMAT:
        sealed.write(OsFiles(), file, msgspec.json.encode(Stamp(FORMAT, __version__)))


_PREFIX = "nexo-run-"


class RunFolder:
    """A new folder, which only this server's user may enter; ``path`` is gone after `close`."""

    def __init__(self) -> None:
        remove_stale()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            fd = _hold(self.path)
            if fd is not None:
                self._fd = fd
                return

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def remove_stale() -> None:
    """Remove the folders of this user's servers that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            fd = _open(path)
        except OSError:  # removed meanwhile, a link, or somebody else's
            continue
        try:
            if os.fstat(fd).st_uid == os.geteuid() and take_lock(fd):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(fd)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _hold(path: Path) -> int | None:
    """Lock a new folder; None if another server has just removed it as stale."""
    try:
        fd = _open(path)
    except FileNotFoundError:
        return None
    fcntl.flock(fd, fcntl.LOCK_EX)
    if path.exists():
        return fd
    os.close(fd)
    return None
