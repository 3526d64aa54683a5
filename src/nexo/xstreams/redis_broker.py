"""The stream broker on a real Redis, through its own streams (6.2 or newer).

Needs the ``redis`` package (extra ``[redis]``). Other programs may use the same streams with
Redis' commands; a message's data is in the field `FIELD`, as `nexo.protocol.values` writes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nexo.errors import (
    ConnectionLost,
    InvalidInput,
    NexoError,
    NotFound,
    RequestTimeout,
    Unavailable,
    WrongType,
)
from nexo.protocol.values import decode_value
from nexo.xstreams import redis_scripts
from nexo.xstreams.broker import StreamBroker
from nexo.xstreams.checks import MAX_PENDING, MAX_STREAM_LENGTH
from nexo.xstreams.ids import MessageId, parse
from nexo.xstreams.values import ConsumerGroupInfo, ConsumerInfo, PendingMessage, StreamMessage

FIELD = "value"

_SLICE_MS = 1_000
"""A blocked read checks this often for a deleted group or a closed broker."""
_FULL_S = 0.02
"""How often a consumer at its limit checks for room."""
_PAGE = 1_000


class RedisStreamBroker(StreamBroker):
    """Streams of a Redis server; a blocked read has its own connection."""

    def __init__(
        self,
        url: str,
        *,
        max_stream_length: int = MAX_STREAM_LENGTH,
        max_pending: int = MAX_PENDING,
    ) -> None:
        super().__init__(max_stream_length, max_pending)
        self._redis = _client(url)
        self._add = self._script(redis_scripts.ADD)
        self._trim = self._script(redis_scripts.TRIM)
        self._delete = self._script(redis_scripts.DELETE)
        self._read = self._script(redis_scripts.READ)
        self._claim = self._script(redis_scripts.CLAIM)
        self._renew = self._script(redis_scripts.RENEW)
        self._drop_group = self._script(redis_scripts.DROP_GROUP)
        self._info = self._script(redis_scripts.INFO)

    def _script(self, text: str) -> Callable[..., Any]:
        script = self._redis.register_script(text)

        def run(stream: str, *args: str | bytes | int) -> Any:
            with self._mapped():
                return script(keys=[stream, f"nexo:trimmed:{{{stream}}}"], args=args)

        return run

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        """Map Redis errors to ours."""
        if self._closed:
            self._drop_idle()
            raise ConnectionLost("the broker is closed")
        from redis import exceptions  # noqa: PLC0415 - an extra

        try:
            yield
        except exceptions.TimeoutError as error:
            raise RequestTimeout(f"Redis did not answer in time: {error}") from error
        except exceptions.ConnectionError as error:
            raise ConnectionLost(f"Redis cannot be reached: {error}") from error
        except exceptions.RedisError as error:
            raise _translated(str(error)) from error

    # -- producing

    def _xadd(self, stream: str, value: bytes) -> str:
        return _text(self._add(stream, FIELD, value, self.limits.max_stream_length))

    # -- groups

    def _create_group(self, stream: str, group: str, start: MessageId | None) -> bool:
        from redis.exceptions import ResponseError  # noqa: PLC0415 - an extra

        with self._mapped():
            try:
                self._redis.xgroup_create(stream, group, str(start or "$"), mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
                return False
        return True

    def _delete_group(self, stream: str, group: str) -> bool:
        return bool(self._drop_group(stream, group))

    def _delete_consumer(self, stream: str, group: str, consumer: str) -> int:
        with self._mapped():
            return int(self._redis.execute_command("XGROUP DELCONSUMER", stream, group, consumer))

    def _get_group_info(self, stream: str) -> list[ConsumerGroupInfo]:
        now_ms = time.time_ns() // 1_000_000
        return sorted(
            (_group_info(row, now_ms) for row in self._info(stream)), key=lambda info: info.name
        )

    # -- consuming

    def _xreadgroup(
        self, stream: str, group: str, consumer: str, count: int, until_s: float | None
    ) -> list[StreamMessage]:
        while True:
            last_id, rows = self._read(stream, group, consumer, count, self.limits.max_pending)
            left_ms = _SLICE_MS if until_s is None else (until_s - time.monotonic()) * 1000
            if rows or left_ms <= 0:
                return [_message(row[0], row[1], 1) for row in rows]
            self._await(stream, _text(last_id), min(_SLICE_MS, int(left_ms) + 1))

    def _await(self, stream: str, last_id: str, wait_ms: int) -> None:
        """Wait for a message after an id; the next read decides who gets it.

        Blocking in the group itself could not respect ``max_pending``.
        """
        if last_id:
            with self._mapped():
                self._redis.xread({stream: last_id}, count=1, block=wait_ms)
        else:
            time.sleep(min(_FULL_S, wait_ms / 1000))

    def _xack(self, stream: str, group: str, ids: list[MessageId]) -> int:
        if not ids:
            return 0
        with self._mapped():
            return int(self._redis.execute_command("XACK", stream, group, *map(str, ids)))

    def _xpending(self, stream: str, group: str, consumer: str | None) -> list[PendingMessage]:
        found: list[PendingMessage] = []
        start = "-"
        while True:
            with self._mapped():
                page = self._redis.xpending_range(stream, group, start, "+", _PAGE, consumer)
            found += map(_pending, page)
            if len(page) < _PAGE:
                return found
            start = f"({found[-1].id}"

    def _xautoclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, count: int
    ) -> list[StreamMessage]:
        rows = self._claim(stream, group, consumer, min_idle_ms, count)
        return [_message(*row) for row in rows]

    def _xrenew(self, stream: str, group: str, consumer: str, ids: list[MessageId]) -> list[str]:
        wanted = [str(each) for each in ids]
        pages = [wanted[at : at + _PAGE] for at in range(0, len(wanted), _PAGE)]
        return [
            _text(each) for page in pages for each in self._renew(stream, group, consumer, *page)
        ]

    # -- the stream itself

    def _xlen(self, stream: str) -> int:
        with self._mapped():
            return int(self._redis.xlen(stream))

    def _xrange(
        self, stream: str, first: MessageId, last: MessageId, count: int | None
    ) -> list[StreamMessage]:
        with self._mapped():
            rows: Any = self._redis.execute_command(
                "XRANGE",
                stream,
                str(first),
                str(last),
                *(("COUNT", count) if count else ()),
                NEVER_DECODE=1,
            )
        return [_message(row_id, flat, 0) for row_id, flat in rows]

    def _xdel(self, stream: str, ids: list[MessageId]) -> int:
        wanted = [str(each) for each in ids]
        pages = range(0, len(wanted), _PAGE)
        return sum(int(self._delete(stream, *wanted[at : at + _PAGE])) for at in pages)

    def _xtrim(self, stream: str, max_len: int) -> int:
        return int(self._trim(stream, max_len))

    def close(self) -> None:
        """End the connections; a blocked read ends its own when it looks up."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        self._redis.connection_pool.disconnect(inuse_connections=False)


def _client(url: str) -> Any:  # the package types its replies too loosely to be of use
    try:
        import redis  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise Unavailable("redis:// needs the redis package: install nexo-broker[redis]") from error
    try:
        return redis.Redis.from_url(url)
    except ValueError as error:
        raise InvalidInput(f"{url!r} is not a Redis URL: {error}") from None


def _translated(text: str) -> NexoError:
    if "NOGROUP" in text or "no such key" in text or "requires the key to exist" in text:
        return NotFound(f"stream or group not found, create it first: {text}")
    if "WRONGTYPE" in text:
        return WrongType(f"the key is no stream: {text}")
    return NexoError(f"Redis error: {text}")


def _text(raw: bytes | str) -> str:
    return raw.decode() if isinstance(raw, bytes) else raw


def _message(raw_id: bytes, flat: Any, delivery_count: int) -> StreamMessage:
    message_id = parse(_text(raw_id))
    return StreamMessage(str(message_id), _data(flat), message_id.ms, delivery_count)


def _data(flat: Any) -> Any:
    """The data of one of our messages; messages of other programs are returned as their fields."""
    fields = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
    value = fields.get(FIELD.encode())
    if value is not None and len(fields) == 1:
        return decode_value(value)
    return {_text(name): content for name, content in fields.items()}


def _pending(row: Any) -> PendingMessage:
    return PendingMessage(
        id=_text(row["message_id"]),
        consumer=_text(row["consumer"]),
        idle_ms=int(row["time_since_delivered"]),
        delivery_count=int(row["times_delivered"]),
    )


def _group_info(row: list[Any], now_ms: int) -> ConsumerGroupInfo:
    name, last_id, pending, lag, trimmed, consumers = row
    return ConsumerGroupInfo(
        name=_text(name),
        last_delivered_id=_text(last_id),
        total_pending=int(pending),
        lag=int(lag),
        trimmed_unread=int(trimmed),
        consumers=tuple(
            ConsumerInfo(_text(who), int(held), now_ms - int(idle_ms))
            for who, held, idle_ms in sorted(consumers)
        ),
    )
