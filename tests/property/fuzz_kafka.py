"""Kafka's entrance for fuzzing: requests of every API and version, and hostile batches."""

from __future__ import annotations

import asyncio
import struct
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

import google_crc32c

from nexo.batch.kafka_write import to_kafka
from nexo.batch.view import decode
from nexo.dialects.dialect import Origin
from nexo.dialects.kafka.format.apis import APIS, Api, ApiKey
from nexo.dialects.kafka.format.codec import Field, KafkaMessage
from nexo.model import Broker
from nexo.protocol import stream
from nexo.protocol.ops import Op
from nexo.server.host import Host
from tests.kafka.session import deliver
from tests.memory_files import MemoryFiles
from tests.property.fuzz_services import Fresh, Requests, Wire, sample_batch, settings_in

BUG = "its request failed"
TOPIC = "thing"
_CRC_FROM = 21


def kafka_batch() -> bytes:
    """Two records as a Kafka client sends them."""
    return to_kafka(decode(sample_batch()))


_TEXTS = {
    "name": TOPIC, "topics": TOPIC, "group": "g", "groups": "g", "key": "g", "keys": "g",
    "transactional_id": "tx", "protocol_type": "consumer", "mechanism": "PLAIN", "value": "1000",
    "assignor": "range", "regex": "", "metadata": "note",
}  # fmt: skip
_NUMBERS = {
    "session_ms": 10_000, "rebalance_ms": 10_000, "timeout_ms": 1_000, "acks": -1, "type": 2,
    "max_bytes": 10_000, "count": 2, "session_id": 0, "generation": -1, "producer_id": 1,
}  # fmt: skip
_NAMES = {"configs": "retention.ms", "protocols": "range"}


def _value(field: Field, version: int, within: str) -> Any:
    if field.fields:
        row = _message(field.fields, version, field.name)
        return [row] if field.is_array else row
    plain: Any
    match field.kind:
        case "str":
            plain = (
                _NAMES.get(within, TOPIC) if field.name == "name" else _TEXTS.get(field.name, "")
            )
        case "bytes":
            plain = kafka_batch() if field.name == "records" else b"\0ana\0secret"
        case "uuid":
            plain = UUID(int=1)
        case "bool":
            plain = True
        case _:
            plain = _NUMBERS.get(field.name, 0)
    return [plain] if field.is_array else plain


def _message(fields: list[Field], version: int, within: str = "") -> KafkaMessage:
    here = [field for field in fields if field.low <= version <= field.high]
    return {field.name: _value(field, version, within) for field in here}


def _seed(api: Api, version: int) -> bytes:
    out = bytearray(struct.pack(">hhih", api.key, version, 7, 2) + b"me")
    if api.is_flexible(version):
        out.append(0)
    api.request.write(out, _message(api.request.fields, version), version)
    return bytes(out)


def kafka_seeds() -> list[bytes]:
    """A sound request of every API, in its first and its last version."""
    versions = {(api.key, version) for api in APIS.values() for version in (api.low, api.high)}
    return [_seed(APIS[key], version) for key, version in sorted(versions)]


def kafka_stream_seeds() -> list[bytes]:
    """Whole conversations: who there is, a topic, records in and out, a group."""
    order = [
        (ApiKey.API_VERSIONS, 3), (ApiKey.METADATA, 9), (ApiKey.PRODUCE, 7), (ApiKey.FETCH, 11),
        (ApiKey.JOIN_GROUP, 5), (ApiKey.OFFSET_COMMIT, 7), (ApiKey.CONSUMER_GROUP_HEARTBEAT, 0),
    ]  # fmt: skip
    frames = [_seed(APIS[key], version) for key, version in order]
    whole = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    login = b"".join(
        struct.pack(">i", len(frame)) + frame
        for frame in (
            _seed(APIS[ApiKey.SASL_HANDSHAKE], 1),
            _seed(APIS[ApiKey.SASL_AUTHENTICATE], 1),
        )
    )
    return [b"\x40" + whole, b"\x02" + login + whole]


class Kafka(Fresh):
    """A Kafka client's connection; an input is one request, without its length."""

    def __init__(self, *, auth: bool = False) -> None:
        super().__init__()
        self._auth = auth
        self._host: Host

    async def _start(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = settings_in(Path(folder), auth=self._auth)
            self._host = Host(settings, MemoryFiles, [Broker.STREAM])
            self._host.open()
        await self._say(_framed(_seed(APIS[ApiKey.METADATA], 9)), 1_000)

    async def _feed(self, data: bytes) -> None:
        await self._say(_framed(data), len(data) + 4)

    async def _say(self, data: bytes, step: int) -> None:
        session: Any = self._host.speakers["kafka"].session(Origin.CLIENT)
        reasons: list[str] = []
        kick = session.kick

        def noted(reason: str) -> None:
            reasons.append(reason)
            kick(reason)

        session.kick = noted
        wire = Wire(session)
        for at in range(0, len(data), step):
            if not wire.closing:
                deliver(session, data[at : at + step])
        await asyncio.sleep(0)
        wire.close()
        await asyncio.sleep(0)
        assert BUG not in reasons, data

    async def _stop(self) -> None:
        self._host.crash()


class KafkaBytes(Kafka):
    """The same with lengths; the first byte says where the bytes are cut."""

    async def _feed(self, data: bytes) -> None:
        await self._say(data[1:], (data[0] if data else 0) * 16 + 1)


class KafkaBatches(Requests):
    """A topic that hostile batches are produced to, and read from by everyone."""

    LIFE = 200

    def __init__(self) -> None:
        super().__init__(Broker.STREAM)

    async def _start(self) -> None:
        await super()._start()
        self.ask(Op.S_MAKE, stream.pack(stream.Make(stream=TOPIC, options={"partitions": 1})))

    async def _feed(self, data: bytes) -> None:
        raw = _resealed(data)
        message = _message(APIS[ApiKey.PRODUCE].request.fields, 7)
        message["transactional_id"] = None
        message["topics"][0]["partitions"][0] |= {"index": 0, "records": raw}
        session: Any = self._host.speakers["kafka"].session(Origin.CLIENT)
        wire = Wire(session)
        out = bytearray(struct.pack(">hhih", ApiKey.PRODUCE, 7, 7, -1))
        APIS[ApiKey.PRODUCE].request.write(out, message, 7)
        deliver(session, _framed(bytes(out)))
        deliver(session, _framed(_seed(APIS[ApiKey.FETCH], 11)))
        self.ask(Op.S_READ, stream.pack(stream.Read(TOPIC, 0, 0, 4_000)))
        self.ask(Op.S_GET, stream.pack(stream.Get(stream=TOPIC, key=b"k")))
        await asyncio.sleep(0)
        wire.close()
        await asyncio.sleep(0)


def _framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _resealed(data: bytes) -> bytes:
    """The same batch with a length and a CRC that fit."""
    if len(data) <= _CRC_FROM:
        return data
    crc = int(google_crc32c.value(data[_CRC_FROM:]))
    head = data[:8] + struct.pack(">i", len(data) - 12) + data[12:17] + struct.pack(">I", crc)
    return head + data[_CRC_FROM:]
