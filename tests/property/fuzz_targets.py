"""Everything that reads bytes from outside or from disk, for the tests and ``tools/fuzz.py``.

A target takes any bytes. `NexoError` is its way to say no; anything else that escapes is a
bug. Seeds are what a well-behaved peer or a sound file would hold.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nexo import batch
from nexo.access.grants import parse_grant
from nexo.access.users import parse_users
from nexo.brokers.pubsub.message import PubSubMessage
from nexo.brokers.pubsub.records import apply, kept
from nexo.brokers.pubsub.retained import Retained, RetainedMessages
from nexo.brokers.queue.ledger import Ledger
from nexo.brokers.queue.places import Places
from nexo.brokers.queue.records import Pushed, decode_record, encode_record
from nexo.brokers.queue.schedules import next_after
from nexo.brokers.queue.snapshot import restore as restore_queue
from nexo.brokers.queue.snapshot import snapshot as snapshot_queue
from nexo.brokers.store.engine import StoreEngine
from nexo.client.address import parse_url
from nexo.client.replies import error_of
from nexo.client.stream_records import Outgoing
from nexo.config import load
from nexo.dialects.nexo.inbox import Inbox
from nexo.dialects.nexo.pubsub import CLASSIC, OURS, Received
from nexo.errors import NexoError
from nexo.model import Broker, blocks, check_name
from nexo.options.units import duration_ms
from nexo.protocol import hello, pubsub, store_classic, stream, values
from nexo.protocol.frames import FieldReader, FrameKind, Status, frame, pack_str
from nexo.protocol.messages import pack
from nexo.protocol.ops import BROKER_OF, Op
from nexo.protocol.stream_publishing import PLACE, pack_refused, read_each, read_places
from nexo.server.entrance.tls import alpn_names
from nexo.services.store import snapshot as store_snapshot
from nexo.storage.journal import Journal
from nexo.storage.log import SegmentedLog
from nexo.storage.sealed import unpack as unpack_sealed
from nexo.storage.snapshot import MAGIC, Snapshots
from tests.memory_files import MemoryFiles
from tests.property.fuzz_http import Http, http_seeds
from tests.property.fuzz_kafka import (
    Kafka,
    KafkaBatches,
    KafkaBytes,
    kafka_batch,
    kafka_seeds,
    kafka_stream_seeds,
)
from tests.property.fuzz_services import (
    Connection,
    Publishing,
    Requests,
    connection_seeds,
    resealed,
    sample_batch,
)
from tests.unit.access.samples import REQUESTS

FOLDER = Path("/data")


@dataclass(frozen=True)
class Target:
    """Something that reads bytes."""

    run: Callable[[bytes], object]
    seeds: Sequence[bytes] = field(default=(b"",))

    def __call__(self, data: bytes) -> None:
        """Run it; a refusal is fine."""
        with contextlib.suppress(NexoError):
            self.run(data)


# -- the wire ---------------------------------------------------------------------------


def _frames(data: bytes) -> None:
    """Bytes as they come from a socket, cut where the first byte says."""
    inbox = Inbox(memoryview(bytearray(4096)), 100_000, lambda *_: None)
    step = (data[0] if data else 0) * 16 + 1
    at = 0
    while at < len(data):
        room = inbox.buffer()
        size = min(step, len(room), len(data) - at)
        room[:size] = data[at : at + size]
        inbox.received(size)
        at += size


def _fields(data: bytes) -> None:
    reader = FieldReader(data)
    reader.text()
    reader.u32()
    reader.take(reader.u8())
    reader.end()


def _batch(data: bytes) -> None:
    whole = batch.verify(data)
    list(whole.records())
    if len(whole):
        batch.cut(whole, 0, len(whole) // 2)


def _batches(data: bytes) -> None:
    for entry in batch.entries(data):
        list(batch.decode(entry, 1_000_000).records())


def _block(data: bytes) -> None:
    count = blocks.check_block(data)
    blocks.values_of(*blocks.cut(data, 0, count))


def _pushes(data: bytes) -> None:
    run = pubsub.parse_run(data)
    whole = Received(run).part(0, len(run.ends))
    whole.alone(OURS)
    whole.alone(CLASSIC)
    list(pubsub.parse_pushes(run.frames))


def _reply(data: bytes) -> None:
    error_of(data[0] if data else Status.ERR, data[1:])


def _stream_replies(data: bytes) -> None:
    for kind in (stream.TakeReply, stream.ReadReply, stream.ReadManyReply, stream.ParkedList):
        Target(lambda raw, kind=kind: stream.unpack_headed(kind, raw))(data)  # type: ignore[misc]
    list(read_places(data))


def _keyed_batch() -> bytes:
    outgoing = Outgoing()
    for key in (b"k", None, b"l"):
        outgoing.add(2, b'{"a": 1}', key, b"")
    head, body = outgoing.encode(1_000)
    return b"".join([bytes(head), *body])


WIRE = {
    "frames": Target(
        _frames, [frame(FrameKind.REQUEST, op, 1, payload) for op, payload in REQUESTS.items()]
    ),
    "fields": Target(_fields, [pack_str("name") + b"\0\0\0\1\2ab"]),
    "hello": Target(
        hello.decode_hello,
        [hello.encode_hello(Broker.QUEUE, hello.Hello("me", "ana", "secret", "token"))],
    ),
    "welcome": Target(hello.decode_welcome, [pack(hello.Welcome("1", 10))]),
    "batch": Target(_batch, [sample_batch()]),
    "hostile batch": Target(lambda data: _batch(resealed(data)), [sample_batch()]),
    "batches": Target(_batches, [sample_batch() * 2]),
    "job block": Target(_block, [blocks.pack_block([b"\x01a", b"\x02{}"])]),
    "message run": Target(_pushes, [REQUESTS[Op.PUBLISH_RUN]]),
    "map set": Target(
        lambda data: store_classic.decode_map_set(memoryview(data)), [REQUESTS[Op.MAP_SET]]
    ),
    "ttl options": Target(store_classic.options_ttl_ms, [b'{"ttl": 1.5}']),
    "value": Target(values.decode_value, [values.encode_value(v) for v in (b"x", "x", {"a": [1]})]),
    "error reply": Target(_reply, [b"\x04" + pack_str("NOT_FOUND") + pack_str("no")]),
    "each reply": Target(read_each, [PLACE.pack(0, 1, 2) + pack_refused(100, [1])]),
    "stream replies": Target(_stream_replies, [stream.pack_headed(stream.ReadReply(0, 1, 1))]),
    "client hello": Target(alpn_names, [bytes.fromhex("160301000a010000060303") + bytes(40)]),
}

# -- texts ----------------------------------------------------------------------------------


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"))


def _settings(data: bytes) -> None:
    """A settings file that holds just these bytes."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(data)
        file.flush()
        load(Path(file.name))


TEXTS = {
    "users file": Target(
        parse_users, [b'[{"name": "ana", "grants": ["*:read:*"], "tokens": {"a": "b"}}]']
    ),
    "grant": Target(_text(parse_grant), [b"queue:write:jobs.*", b"pubsub:read:a/+/#"]),
    "url": Target(_text(parse_url), [b"nexo://a:b@host:1?timeout=1&verify=false"]),
    "cron": Target(_text(lambda text: next_after(text, 0)), [b"*/5 0-3,7 1 jan-dec mon"]),
    "name": Target(_text(check_name), [b"a/b:c"]),
    "settings file": Target(_settings, [b'port = 1\nauth = true\nlog = "info"\nflush_ms = "50ms"']),
    "duration": Target(_text(duration_ms), [b"7d", b"250ms"]),
}

# -- files ------------------------------------------------------------------------------------


def _planted(name: str, data: bytes) -> MemoryFiles:
    files = MemoryFiles()
    files.make_folder(FOLDER)
    file = files.open(FOLDER / name, create=True)
    file.write_at(0, [data])
    return files


def _content(files: MemoryFiles, name: str) -> bytes:
    file = files.open(FOLDER / name)
    return file.read_at(0, file.size())


def _journal_files() -> MemoryFiles:
    files = MemoryFiles()
    journal = Journal(files, FOLDER)
    list(journal.recover().records)
    for number in range(3):
        journal.append([b"first", b"second" * number], 1_000)
    journal.close()
    return files


_LOG = next(name for name in _journal_files().list(FOLDER) if name.endswith(".log"))


def _log(data: bytes) -> None:
    """Recover, write, and recover again."""
    files = _planted(_LOG, data)
    for _ in range(2):
        journal = Journal(files, FOLDER)
        list(journal.recover().records)
        journal.append([b"later"], 2_000)
        journal.close()


def _damaged_log(data: bytes) -> None:
    """Read what can be read, whatever lies between."""
    log = SegmentedLog(_planted(_LOG, data), FOLDER)
    log.verify()
    log.offset_at(1_000)
    list(log.entries())


def _index(data: bytes) -> None:
    files = _journal_files()
    file = files.open(FOLDER / _LOG.replace(".log", ".index"), create=True)
    file.truncate(0)
    file.write_at(0, [data])
    log = SegmentedLog(files, FOLDER)
    found = list(log.entries())
    assert len(found) == 3, "a damaged index loses no entry"


def _snapshot_file(data: bytes) -> None:
    Snapshots(_planted(f"{7:020}.snap", data), FOLDER).load()


def _saved_snapshot() -> bytes:
    files = MemoryFiles()
    Snapshots(files, FOLDER).save(7, b"payload")
    return _content(files, f"{7:020}.snap")


def _store_file(data: bytes) -> None:
    files = _planted(store_snapshot.NAME, data)
    store_snapshot.load(files, FOLDER / store_snapshot.NAME, StoreEngine(), 1_000)


def _saved_store() -> bytes:
    files, engine = MemoryFiles(), StoreEngine()
    files.make_folder(FOLDER)
    engine.set("k", b"\x01v", 1_000)
    store_snapshot.save(files, FOLDER / store_snapshot.NAME, engine, 1_000)
    return _content(files, store_snapshot.NAME)


def _retained(data: bytes) -> None:
    apply(data, RetainedMessages())


FILES = {
    "journal": Target(_log, [_content(_journal_files(), _LOG)]),
    "log segment": Target(_damaged_log, [_content(_journal_files(), _LOG)]),
    "log index": Target(_index),
    "sealed file": Target(lambda data: unpack_sealed(MAGIC, data), [_saved_snapshot()]),
    "snapshot": Target(_snapshot_file, [_saved_snapshot()]),
    "store snapshot": Target(_store_file, [_saved_store()]),
    "queue record": Target(decode_record, [encode_record(Pushed(0, 1, 1_000, b"block"))]),
    "queue image": Target(restore_queue, [snapshot_queue(Ledger(), Places())]),
    "retained record": Target(
        _retained, [kept(Retained(PubSubMessage("t", b"\x01v", 7, b"{}"), 0))]
    ),
}


# -- whole services: state between the requests, so they are made anew for every run ----------


def _services() -> dict[str, Target]:
    requests = {
        f"{broker.label} requests": Target(
            Requests(broker),
            [bytes([op]) + raw for op, raw in REQUESTS.items() if BROKER_OF[op] == broker],
        )
        for broker in Broker
    }
    batches = [b"\0" + sample_batch(), b"\1" + _keyed_batch()]
    return requests | {
        "published batch": Target(Publishing(), batches),
        "connection": Target(Connection(auth=False), connection_seeds()),
        "login": Target(Connection(auth=True), connection_seeds()),
        "kafka": Target(Kafka(), kafka_seeds()),
        "kafka login": Target(Kafka(auth=True), kafka_seeds()),
        "kafka bytes": Target(KafkaBytes(), kafka_stream_seeds()),
        "kafka batch": Target(KafkaBatches(), [kafka_batch()]),
        "http": Target(Http(auth=False), http_seeds()),
        "http login": Target(Http(auth=True), http_seeds()),
    }


def every_target() -> dict[str, Target]:
    """All of them."""
    return {**WIRE, **TEXTS, **FILES, **_services()}


ENTRANCES = {
    "a connection's bytes": ["connection", "frames", "fields"],
    "hello, login, TLS hello": ["login", "hello", "client hello"],
    "store requests": ["store requests", "map set", "ttl options"],
    "pub/sub requests": ["pubsub requests", "message run"],
    "queue requests": ["queue requests", "job block"],
    "stream requests": ["stream requests"],
    "batches": ["published batch", "hostile batch", "batch", "batches"],
    "Kafka": ["kafka", "kafka login", "kafka bytes", "kafka batch"],
    "HTTP": ["http", "http login"],
    "log and segment files": ["journal", "log segment", "log index"],
    "snapshots and records": [
        "sealed file", "snapshot", "store snapshot", "queue image", "queue record",
        "retained record",
    ],
    "options, users, settings": [
        "users file", "grant", "settings file", "cron", "name", "duration", "url",
    ],
    "replies, at the client": ["welcome", "value", "error reply", "stream replies", "each reply"],
}  # fmt: skip
"""Where bytes come in, the most exposed first, and the decoders behind each."""
