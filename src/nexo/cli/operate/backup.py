"""``nexo backup``: copy a server's data while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nexo.cli import output
from nexo.cli.operate import backup_file
from nexo.cli.options import client
from nexo.model import Broker
from nexo.options.units import size_text
from nexo.protocol.messages import pack, unpack
from nexo.protocol.ops import Op
from nexo.protocol.server import BackupAsk, BackupBegin, BackupEnd, BackupFiles, BackupRead
from nexo.version import __version__

if TYPE_CHECKING:
    from nexo import Client


class KeptFiles:
    """One broker's files, as they were when this was made."""

    def __init__(self, client: Client, broker: Broker) -> None:
        self.broker = broker
        self._link = client.link(broker).duplex()  # the server keeps files for one connection
        self.files = unpack(BackupFiles, self._ask(BackupBegin())).files

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(size for _, size in self.files)

    def pieces(self, number: int) -> Iterator[bytes]:
        """The bytes of one file."""
        position, size = 0, self.files[number][1]
        while position < size:
            piece = self._ask(BackupRead(number, position))
            position += len(piece)
            yield piece

    def _ask(self, ask: BackupAsk) -> bytes:
        return bytes(self._link.call(Op.BACKUP, bytes((self.broker,)), pack(ask)) or b"")

    def end(self) -> None:
        """Let the server free them."""
        self._ask(BackupEnd())


@contextmanager
def _kept(client: Client, broker: Broker) -> Iterator[KeptFiles]:
    kept = KeptFiles(client, broker)
    yield kept
    kept.end()  # after a failure the closed connection does it


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def command(file: Path) -> None:
    """Copy everything that is on the server's disk to FILE, a tar archive.

    The server keeps running. What it acknowledged before is in the backup. A FILE
    that ends in .gz is compressed. The lake and the users file are not part of it.
    """
    with client() as nexo, ExitStack() as stack:
        parts = [stack.enter_context(_kept(nexo, broker)) for broker in Broker]
        manifest = _manifest(parts)
        with (
            backup_file.writing(file, manifest) as writer,
            output.progress(file.name, manifest.size_bytes) as bar,
        ):
            for part in parts:
                for number, (name, size) in enumerate(part.files):
                    pieces = _shown(part.pieces(number), bar)
                    writer.add(f"{part.broker.label}/{name}", size, pieces)
    count = sum(manifest.files.values())
    output.done(
        f"{count:,} files, {size_text(manifest.size_bytes)}, saved to {file}",
        file=str(file), files=count, size_bytes=manifest.size_bytes,
    )  # fmt: skip


def _shown(pieces: Iterator[bytes], bar: output.ProgressTask) -> Iterator[bytes]:
    for piece in pieces:
        bar.advance(len(piece))
        yield piece


def _manifest(parts: list[KeptFiles]) -> backup_file.ArchiveManifest:
    return backup_file.ArchiveManifest(
        format=backup_file.FORMAT,
        nexo=__version__,
        created_ms=int(time.time() * 1000),
        files={part.broker.label: len(part.files) for part in parts},
        size_bytes=sum(part.size_bytes for part in parts),
    )
