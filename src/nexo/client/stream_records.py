"""Stream records as users see them and as they are sent; shared by both clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, repeat, starmap
from typing import Any, Generic, TypeVar, overload

import msgspec

from nexo.batch import (
    ANONYMOUS,
    Batch,
    BatchProducer,
    Compression,
    EntryParts,
    decode,
    encode,
    encode_plain,
    entries,
)
from nexo.errors import InvalidInput, NexoError
from nexo.model import Buffer
from nexo.model.stream import ParkedInfo
from nexo.protocol.values import PLAIN, ValueType, check_type, decode_content, json_bytes, utf8

T = TypeVar("T")

_RAW, _TEXT, _JSON = map(int, (ValueType.RAW, ValueType.TEXT, ValueType.JSON))

_SHOWN_CHARS = 100
_SHOWN_PLACES = 3

Key = str | bytes | None
Headers = Mapping[str, Any] | None


class Published(msgspec.Struct, frozen=True, order=True, gc=False):
    """The place of a published record. Like a row: ``partition, offset = place``, ``dict(place)``.

    A struct that the garbage collector ignores takes a third of a named tuple's time to create.
    """

    partition: int
    offset: int

    def __iter__(self) -> Iterator[int]:
        return iter((self.partition, self.offset))

    def keys(self) -> tuple[str, ...]:
        """The names of both, for ``dict``: web frameworks send that."""
        return self.__struct_fields__

    def __getitem__(self, name: str) -> int:
        value: int = getattr(self, name)
        return value


class Record(Generic[T]):
    """One record; its value is decoded when it is asked for."""

    __slots__ = (
        "_content", "_headers", "_key", "_type", "_value_type", "attempt", "offset",
        "partition", "timestamp_ms",
    )  # fmt: skip

    def __init__(
        self, partition: int, row: Sequence[Any], type_: type[T] | None, attempt: int = 0
    ) -> None:
        self.partition = partition
        self.offset, self.timestamp_ms, self._key, self._content, self._value_type, \
            self._headers = row  # fmt: skip
        self.attempt = attempt
        """Which delivery to the group this is, from 1; 0 for one read without a group."""
        self._type: Any = type_

    @property
    def value(self) -> T:
        """The published value, checked and converted if the stream has a type; None if deleted."""
        if self._content is None:
            return None  # type: ignore[return-value]
        decoded: T = decode_content(self._value_type, self._content, self._type)
        return decoded

    @property
    def payload(self) -> bytes | None:
        """The value's bytes, without looking inside; None for a deleted key."""
        content: bytes | None = self._content
        return content

    @property
    def value_type(self) -> int:
        """How to read the payload: a `nexo.protocol.values.ValueType`."""
        kind: int = self._value_type
        return kind

    @property
    def key(self) -> Key:
        """The record's key: text, or bytes if it is not UTF-8."""
        return None if self._key is None else key_text(self._key)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers it was published with."""
        return msgspec.json.decode(self._headers, type=dict[str, Any]) if self._headers else {}

    @property
    def timestamp(self) -> datetime:
        """When it was published, by the publisher's clock."""
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)

    def __repr__(self) -> str:
        key = "" if self._key is None else f", key={self.key!r}"
        return (
            f"{type(self).__name__}(partition={self.partition}, offset={self.offset}{key},"
            f" value={shown(self)})"
        )


class ParkedRecord(Record[T]):
    """A record that was parked after too many deliveries."""

    __slots__ = ("attempts", "parked_ms", "reason")

    def __init__(self, partition: int, row: Any, type_: Any, parked: ParkedInfo) -> None:
        super().__init__(partition, row, type_)
        self.attempts = parked.attempts
        """How often it was delivered."""
        self.parked_ms = parked.parked_ms
        self.reason = parked.reason
        """Why it failed the last time."""


RecordOrPlace = Record[Any] | Published
"""A record, or its place."""


def gone(offset: int) -> tuple[object, ...]:
    """Stands for a record that is damaged or was removed by retention: its value is None."""
    return offset, 0, None, None, 0, b""


def shown(holder: Any) -> str:
    """The ``value`` of a record, message or job for its repr: never long, never an error."""
    try:
        text = repr(holder.value)
    except NexoError:
        return f"<{len(holder.payload or b'')} bytes>"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def slices(records: int, partitions: int | None) -> int:
    """The number of batches to cut records without a key into, so that partitions get equal shares.

    A few records stay together: the batches of several requests take turns anyway (SPEC E2).
    """
    return max(1, min(partitions or 1, records // 2))


def batches_in(data: Buffer) -> Iterator[Batch]:
    """The batches of a reply."""
    return map(decode, entries(data))


def typed_content(type_: Any, value: object) -> tuple[int, bytes]:
    """`content_of` a value that is readable as ``type_``."""
    if value.__class__ is not type_ or type_ not in PLAIN:
        check_type(type_, value)
    return content_of(value)


def content_of(value: object) -> tuple[int, bytes]:
    """A value's type and bytes."""
    if isinstance(value, bytes):
        return _RAW, value
    if isinstance(value, str):
        return _TEXT, utf8(value)
    if isinstance(value, bytearray | memoryview):
        return _RAW, bytes(value)
    return _JSON, json_bytes(value)


def key_bytes(key: Key) -> bytes | None:
    """A key as it is sent."""
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"the key cannot be written as UTF-8: {error.reason}") from None
    if key is None or isinstance(key, bytes):
        return key
    raise InvalidInput(f"a key is text or bytes, not {type(key).__name__}")


def needed_key(key: str | bytes) -> bytes:
    """`key_bytes` where there must be one."""
    found = key_bytes(key)
    if found is None:
        raise InvalidInput("a key is needed: text or bytes, not None")
    return found


def key_text(key: bytes) -> str | bytes:
    """A key as users see it: text, or as it is if it is not UTF-8."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def headers_bytes(headers: Headers) -> bytes:
    """Headers as they are sent: JSON text, empty for none."""
    if not headers:
        return b""
    if not isinstance(headers, Mapping):
        raise InvalidInput(f"headers are a mapping of names to values, not {headers!r}")
    return json_bytes(dict(headers))


class Outgoing:
    """Records on their way into one batch."""

    __slots__ = ("headers", "keys", "size_bytes", "types", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.types: list[int] = []
        self.keys: list[bytes | None] = []
        """As long as `values`, or shorter by records without a key at the end."""
        self.headers: list[bytes] = []
        """As `keys`."""
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.values)

    def add(
        self, kind: int, content: bytes | None, key: bytes | None = None, headers: bytes = b""
    ) -> None:
        """One more record; content None deletes the key."""
        if content is not None:
            self.size_bytes += len(content) + 8
        elif key is not None:
            self.size_bytes += 8
        else:
            raise InvalidInput("a record that deletes needs the key to delete")
        self.values.append(content)
        self.types.append(kind)
        if key is not None:
            self.keys += [None] * (len(self.values) - len(self.keys) - 1)
            self.keys.append(key)
            self.size_bytes += len(key)
        if headers:
            self.headers += [b""] * (len(self.values) - len(self.headers) - 1)
            self.headers.append(headers)
            self.size_bytes += len(headers)

    def rows(self) -> Iterator[tuple[int, bytes | None, bytes | None, bytes]]:
        """The added rows, as `add` takes them."""
        keys, headers = chain(self.keys, repeat(None)), chain(self.headers, repeat(b""))
        return zip(self.types, self.values, keys, headers, strict=False)

    def part(self, which: slice) -> Outgoing:
        """Some of the records."""
        part = Outgoing()
        part.values, part.types = self.values[which], self.types[which]
        part.keys, part.headers = self.keys[which], self.headers[which]
        return part

    def encode(
        self,
        now_ms: int,
        *,
        producer: BatchProducer = ANONYMOUS,
        compression: Compression = Compression.NONE,
        flags: int = 0,
    ) -> EntryParts:
        """The batch."""
        count = len(self.values)
        plain = not (self.keys or self.headers or compression or flags)
        if plain and self.types.count(self.types[0]) == count:
            return encode_plain(self.values, self.types[0], now_ms, producer)  # type: ignore[arg-type]
        keys = self.keys + [None] * (count - len(self.keys)) if self.keys else None
        headers = self.headers + [b""] * (count - len(self.headers)) if self.headers else None
        return encode(
            self.values,
            self.types,
            now_ms,
            keys=keys,
            headers=headers,
            producer=producer,
            compression=compression,
            flags=flags,
        )


BATCH_BYTES = 1024**2
"""About how much of what is published together is sent in one request."""


def is_full(records: Outgoing, content: bytes | None) -> bool:
    """Whether the next record starts another request."""
    return bool(records) and records.size_bytes + len(content or b"") > BATCH_BYTES


def by_partition(
    partitions: Sequence[int],
    rows: Sequence[tuple[int, bytes | None]],
    keys: Sequence[bytes | None],
    headers: Sequence[bytes],
) -> tuple[list[tuple[int, Outgoing]], list[tuple[int, int]]]:
    """Batches of records, each with its partition, and the ``slots`` that `PublishedBatch` takes.

    ``rows`` are types and contents.
    """
    runs: list[tuple[int, Outgoing]] = []
    open_runs: dict[int, int] = {}
    slots: list[tuple[int, int]] = []
    columns = zip(partitions, rows, keys, headers, strict=True)
    for partition, (kind, content), key, header in columns:
        run = open_runs.get(partition)
        if run is None or is_full(runs[run][1], content):
            run = open_runs[partition] = len(runs)
            runs.append((partition, Outgoing()))
        records = runs[run][1]
        slots.append((run, len(records)))
        records.add(kind, content, key, header)
    return runs, slots


class PublishedBatch(Sequence[Published]):
    """The place of each record of a `publish_many`, in the order given.

    Places are created on access: few callers look at any, and creating them takes a quarter as
    long as publishing. `list` turns it into what JSON encoders of web frameworks take.
    """

    __slots__ = ("_made", "_runs", "_slots")
    keys = None  # so that `dict` rejects it; as pairs, one offset of a partition would stay

    def __init__(
        self, runs: list[tuple[int, int, int]], slots: list[tuple[int, int]] | None = None
    ) -> None:
        self._runs = runs
        """``partition, first offset, count`` of what was sent together."""
        self._slots = slots
        """With keys: which run each record is in, and where in it."""
        self._made: list[Published] | None = None

    @overload
    def __getitem__(self, index: int) -> Published: ...
    @overload
    def __getitem__(self, index: slice) -> list[Published]: ...
    def __getitem__(self, index: int | slice) -> Published | list[Published]:
        return self._all()[index]

    def __len__(self) -> int:
        return sum(count for _, _, count in self._runs)

    def __iter__(self) -> Iterator[Published]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == [*other]

    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __repr__(self) -> str:
        return f"<PublishedBatch of {len(self)} records: {self[:_SHOWN_PLACES]}>"

    def _all(self) -> list[Published]:
        if self._made is None:
            runs, slots = self._runs, self._slots
            if slots is None:
                self._made = [*chain.from_iterable(starmap(consecutive, runs))]
            else:
                self._made = [Published(runs[run][0], runs[run][1] + at) for run, at in slots]
        return self._made


def consecutive(partition: int, first: int, count: int) -> Iterator[Published]:
    """The places of records that were stored together."""
    # no bytecode per record: there may be thousands
    return map(Published, repeat(partition), range(first, first + count))
