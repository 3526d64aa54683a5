# Generated from _async/contract.py by tools/unasync.py; edit that file instead.
"""The contract of a stream: typed columns of its table in the lake.

The lake must be reachable from here, as for `Client.sql`; ``pip install 'nexo-broker[sql]'``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from nexo.client._sync import runtime
from nexo.client._sync.link.link import Link
from nexo.client._sync.requests import status
from nexo.client.views import BackfillResult, ContractInfo
from nexo.errors import ConfigError
from nexo.extras import hint
from nexo.model import Broker

if TYPE_CHECKING:
    from nexo.contracts import StreamContract

T = TypeVar("T")


class Contract:
    """How a stream's values are taken apart into columns; a pipeline follows each change.

    Types are ``boolean``, ``int``, ``long``, ``float``, ``double``, ``string``, ``binary``,
    ``date``, ``timestamp``, ``json``, ``decimal(10, 2)``, ``list<long>``, ``map<string, double>``
    and ``struct<street: string, zip: int>``.
    """

    def __init__(self, link: Link, stream: str, lake: str | None) -> None:
        self._link = link
        self._stream = stream
        self._lake = lake

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of stream {self._stream!r}>"

    def info(self) -> ContractInfo:
        """The contract as it is now."""
        return self._run(lambda contract: contract.info())

    def set(self, columns: Any) -> ContractInfo:
        """Add or widen columns; those that are not named stay.

        ``columns`` are names and types, ``{"amount": "decimal(10, 2)"}``, or a dataclass, msgspec
        struct, pydantic model or JSON Schema.
        """
        return self._run(lambda contract: contract.set(columns))

    def infer(self) -> ContractInfo:
        """Add columns that fit the JSON values that were published last."""
        return self._run(lambda contract: contract.infer())

    def avro(self, schema: Any, *, schema_id: int | None = None) -> ContractInfo:
        """Read values as Avro of this schema, JSON text or what it means.

        With a ``schema_id``, values begin with a zero and the id of their schema, as Confluent's
        serializers write them; schemas of other ids stay.
        """
        return self._run(lambda contract: contract.avro(schema, schema_id=schema_id))

    def protobuf(
        self, descriptors: bytes, message: str, *, schema_id: int | None = None
    ) -> ContractInfo:
        """Read values as this message of a descriptor set; ``schema_id`` as for `avro`."""
        return self._run(
            lambda contract: contract.protobuf(descriptors, message, schema_id=schema_id)
        )

    def debezium(self, **settings: Any) -> ContractInfo:
        """Read values as Debezium's envelopes: the columns are those of the row after a change.

        Values with a schema beside them give the columns. Settings say what others do not:
        ``decimals`` (``text`` or ``base64``), ``times`` (``millis``, ``micros`` or ``nanos``),
        ``tombstones`` (``delete`` for rows without an envelope), ``unavailable``.
        """
        return self._run(lambda contract: contract.debezium(settings))

    def json(self) -> ContractInfo:
        """Read values as JSON again."""
        return self._run(lambda contract: contract.json())

    def permissive(self, on: bool = True) -> ContractInfo:
        """Whether a field that does not fit is null alone; otherwise its record is refused."""
        return self._run(lambda contract: contract.permissive(on))

    def additions(self, on: bool = True) -> ContractInfo:
        """Whether new fields of JSON values become columns by themselves."""
        return self._run(lambda contract: contract.additions(on))

    def rename(self, old: str, new: str) -> ContractInfo:
        """Give a column another name; nothing is rewritten."""
        return self._run(lambda contract: contract.rename(old, new))

    def backfill(self) -> BackfillResult:
        """Fill the columns of records that are older than they are."""
        return self._run(lambda contract: contract.backfill())

    def redrive(self, to: str | None = None) -> int:
        """Publish dead letters again, those that were not yet, to the stream or another one."""
        return self._run(lambda contract: contract.redrive(to))

    def _run(self, work: Callable[[StreamContract], T]) -> T:
        try:
            from nexo.contracts import open_contract  # noqa: PLC0415 - optional, slow to import
        except ImportError as error:
            raise ConfigError(hint(str(error.name), "sql")) from None
        found = status(self._link.call, Broker.STREAM)
        made = open_contract(self._link.address, found, self._stream, self._lake)
        return runtime.in_thread(partial(work, made))
