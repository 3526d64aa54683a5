"""``nexo stream publish``: values from the command line, or records from files and pipes."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from nexo.cli import output
from nexo.cli.options import Failure, SignedCommand, as_option, client, read_value
from nexo.errors import InvalidInput, NexoError

if TYPE_CHECKING:
    from nexo.client._sync.stream.stream import Stream

_BATCH = 1_000
_BATCH_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A record to publish, and how many bytes of input it was."""

    value: Any
    key: str | None
    headers: dict[str, Any] | None
    size_bytes: int


@click.command("publish", cls=SignedCommand)
@click.argument("stream")
@click.argument("values", nargs=-1)
@as_option
@click.option("--file", "files", multiple=True, type=click.Path(allow_dash=True),
              help="Publish each line of this file; - is standard input. Repeatable.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["lines", "jsonl", "records"]),
              default="lines", show_default=True,
              help="Lines as text, as JSON, or as `nexo tail --json` prints them.")  # fmt: skip
@click.option("--key", help="The key of every record.")
@click.option("--key-field", help="With jsonl: the field that is the key.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
def command(
    stream: str,
    values: tuple[str, ...],
    kind: str,
    files: tuple[str, ...],
    form: str,
    key: str | None,
    key_field: str | None,
    headers: tuple[str, ...],
) -> None:
    """Publish VALUES to STREAM, or every line of files or of standard input.

    A value is - for standard input as a whole, or @name for a whole file.
    """
    titles = _headers(headers)
    if values and files:
        raise click.UsageError("give either values or --file, not both")
    with client() as nexo:
        target = nexo.stream(stream)
        if values:
            for content in [read_value(value, kind) for value in values]:
                at = target.publish(content, key=key, headers=titles)
                output.done(f"{at.partition}:{at.offset}", partition=at.partition, offset=at.offset)
            return
        total = 0
        for name in files or ("-",):
            total += _publish_file(target, name, Lines(form, key, key_field, titles))
    output.done(f"{total:,} records published", stream=stream, records=total)


def _headers(given: Iterable[str]) -> dict[str, Any] | None:
    pairs = [text.partition("=") for text in given]
    if any(not name or not equals for name, equals, _ in pairs):
        raise click.BadParameter("a header is NAME=VALUE")
    return {name: value for name, _, value in pairs} or None


# -- lines ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lines:
    """One parsed line of input."""

    form: str
    key: str | None = None
    key_field: str | None = None
    headers: dict[str, Any] | None = None

    def record(self, raw: bytes) -> InputRecord:
        """The record of one line; `InvalidInput` says what is wrong with it."""
        try:
            text = raw.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise InvalidInput("not UTF-8 text") from None
        if self.form == "lines":
            return InputRecord(text, self.key, self.headers, len(raw))
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InvalidInput(f"not JSON: {error}") from None
        if self.form == "records":
            return self._whole(found, len(raw))
        return InputRecord(found, self._key_of(found), self.headers, len(raw))

    def _key_of(self, found: Any) -> str | None:
        if self.key_field is None:
            return self.key
        if not isinstance(found, dict) or self.key_field not in found:
            raise InvalidInput(f"no field {self.key_field!r} for the key")
        key = found[self.key_field]
        return key if isinstance(key, str) else json.dumps(key)

    def _whole(self, found: Any, size: int) -> InputRecord:
        if not isinstance(found, dict) or "value" not in found:
            raise InvalidInput("a record is an object with value, and perhaps key and headers")
        value, key, headers = found["value"], found.get("key", self.key), found.get("headers") or {}
        if not isinstance(key, str | None) or not isinstance(headers, dict):
            raise InvalidInput("the key of a record is text, and its headers are an object")
        if isinstance(value, dict) and value.keys() == {"base64"}:
            value = _decoded(value["base64"])
        return InputRecord(value, key, headers | (self.headers or {}) or None, size)


def _decoded(text: Any) -> bytes:
    try:
        return base64.b64decode(text)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the value is not base64: {error}") from None


def _publish_file(stream: Stream[Any], name: str, lines: Lines) -> int:
    """Publish a file's lines in batches, as they come; returns how many."""
    done = 0
    with _opened(name) as file, output.progress(name, _size_of(file)) as bar:
        try:
            for batch in batches(_records(file, lines)):
                _publish_batch(stream, batch)
                done += len(batch)
                bar.advance(sum(record.size_bytes for record in batch))
        except NexoError as error:
            said = f"{name}: {error.message}; {done:,} records were published"
            raise Failure(error.code, said) from None
    return done


def _records(file: IO[bytes], lines: Lines) -> Iterator[InputRecord]:
    for number, raw in enumerate(file, 1):
        if not raw.strip() and lines.form != "lines":
            continue
        try:
            yield lines.record(raw)
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error.message}") from None


def batches(records: Iterable[InputRecord]) -> Iterator[list[InputRecord]]:
    """Records in runs of up to a thousand records or about a megabyte.

    What came before a bad line is handed out before its error is raised.
    """
    batch: list[InputRecord] = []
    size = 0
    try:
        for record in records:
            batch.append(record)
            size += record.size_bytes
            if len(batch) >= _BATCH or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
    except InvalidInput:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _publish_batch(stream: Stream[Any], batch: list[InputRecord]) -> None:
    keyed = any(record.key is not None for record in batch)
    titled = any(record.headers for record in batch)
    stream.publish_many(
        [record.value for record in batch],
        keys=[record.key for record in batch] if keyed else None,
        headers=[record.headers for record in batch] if titled else None,
    )


def _opened(name: str) -> AbstractContextManager[IO[bytes]]:
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise click.BadParameter(f"cannot read {name}: {error.strerror}") from None


def _size_of(file: IO[bytes]) -> int | None:
    """How much there is to read, if anybody knows."""
    try:
        return Path(file.name).stat().st_size
    except (AttributeError, OSError, TypeError):
        return None
