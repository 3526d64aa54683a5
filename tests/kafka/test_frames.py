"""The entrance for Kafka clients under bad input: it closes, and harms nobody (SPEC L5)."""

from __future__ import annotations

import random
import socket
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nexo
from nexo import limits
from nexo.dialects.dialect import Claim
from nexo.dialects.kafka.dialect import KafkaDialect
from nexo.dialects.kafka.format.apis import APIS, UNKNOWN, ApiKey
from nexo.dialects.kafka.format.codec import Field, KafkaMessage, Schema
from nexo.dialects.kafka.format.wire import I32, Input, write_length
from nexo.errors import ProtocolError
from nexo.model import Broker

SEED = 17


def request(key: int, version: int, body: bytes, correlation: int = 7) -> bytes:
    frame = struct.pack(">hhih", key, version, correlation, -1) + body
    return struct.pack(">i", len(frame)) + frame


def answer(bootstrap: str, sent: bytes) -> bytes:
    """What comes back until the connection ends, or one whole response."""
    host, port = bootstrap.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(sent)
        found = b""
        while len(found) < 4 or len(found) < 4 + int.from_bytes(found[:4], "big"):
            try:
                part = sock.recv(65_536)
            except ConnectionError:
                return found
            if not part:
                return found
            found += part
        return found


def test_first_bytes_are_claimed_only_if_they_are_kafkas() -> None:
    dialect = KafkaDialect()
    assert dialect.claim(request(18, 3, b"")) is Broker.STREAM
    assert dialect.claim(b"\x00\x00") is Claim.MORE
    assert dialect.claim(b"\x16\x03\x01\x02\x00\x01\x00\x01") is Claim.NO
    assert dialect.claim(b"\x00\x00\x00\x40\x7f\x7f\x00\x00") is Claim.NO


def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest(bootstrap: str) -> None:
    found = answer(bootstrap, request(18, 9, b"\x00"))
    assert struct.unpack(">ih", found[4:10]) == (7, 35)
    count = struct.unpack(">i", found[10:14])[0]
    assert count == len(APIS)


AT_LEAST = {
    0: (3, 13), 1: (4, 13), 2: (1, 5), 3: (0, 8), 8: (2, 7), 9: (1, 5), 10: (0, 2), 11: (0, 5),
    12: (0, 3), 13: (0, 3), 14: (0, 3), 15: (0, 4), 16: (0, 2), 42: (0, 1), 47: (0, 0), 17: (1, 1),
    36: (0, 1), 18: (0, 4), 19: (2, 4), 20: (1, 3), 21: (0, 1), 37: (0, 1), 22: (0, 5), 24: (0, 3),
    25: (0, 4), 26: (0, 5), 28: (0, 5), 23: (2, 3), 32: (1, 3), 33: (0, 1), 44: (0, 0), 60: (0, 0),
    68: (0, 1), 69: (0, 0), 29: (1, 3), 35: (1, 4), 43: (0, 2), 46: (0, 0), 55: (0, 1),
    74: (0, 1), 30: (1, 3), 31: (1, 3), 57: (0, 1), 61: (0, 0), 65: (0, 0), 66: (0, 1), 75: (0, 0),
}  # fmt: skip
"""By key: the versions that clients of today need."""


def test_every_version_that_clients_need_is_served() -> None:
    served = {key: (api.low, api.high) for key, api in APIS.items()}
    assert served.keys() == AT_LEAST.keys()
    for key, (low, high) in AT_LEAST.items():
        assert served[key][0] <= low <= high <= served[key][1]


@pytest.mark.parametrize("key", [*APIS, 4, 62, 91])
def test_what_is_not_served_is_answered_with_an_error(bootstrap: str, key: int) -> None:
    """UNSUPPORTED_VERSION, wherever the answer has room for one; the connection goes on."""
    host, port = bootstrap.split(":")
    api = APIS.get(key, UNKNOWN)
    versions = {api.low - 1, api.high + 1} - {-1} if key in APIS else {0}
    with socket.create_connection((host, int(port)), timeout=20) as sock, sock.makefile("rb") as of:
        for version in sorted(versions - ({0, 1, 2} if key == ApiKey.API_VERSIONS else set())):
            sock.sendall(request(key, version, b"\x00" * 9, version))
            frame = memoryview(of.read(int.from_bytes(of.read(4), "big")))
            assert int.from_bytes(frame[:4], "big") == version
            nearest = min(max(version, api.low), api.high)
            tagged = api.is_flexible(version) and key != ApiKey.API_VERSIONS
            if key == ApiKey.API_VERSIONS:
                nearest = 0
            found = api.response.read(Input(frame[5 if tagged else 4 :]), nearest)
            assert 35 in errors(found)
        sock.sendall(request(18, 0, b"", 99))
        assert int.from_bytes(of.read(8)[4:], "big") == 99


def errors(found: object) -> set[int]:
    """All errors in a response."""
    if isinstance(found, dict):
        mine = {found["error"]} if "error" in found else set()
        return mine.union(*(errors(value) for value in found.values()))
    if isinstance(found, list):
        return set().union(*map(errors, found))
    return set()


def test_fetch_sessions_are_not_given_out_and_not_known(bootstrap: str) -> None:
    body = struct.pack(">iiiibiii", -1, 0, 1, 1_000, 0, 5, 1, 0) + struct.pack(">i", 0)
    found = answer(bootstrap, request(1, 7, body))
    assert struct.unpack(">ih", found[8:14]) == (0, 70)


@pytest.mark.parametrize(
    "sent",
    [
        request(3, 0, struct.pack(">i", 2**31 - 1)),  # an array that is not there
        request(3, 0, struct.pack(">i", -7)),
        request(3, 0, struct.pack(">ih", 1, 500)),  # a text that is cut short
        request(3, 0, struct.pack(">ih", 1, 2) + b"\xff\xff"),
        request(3, 9, b"\x00\xff\xff\xff\xff\xff\xff"),  # a number without an end
        struct.pack(">ihhi", 9, 3, 0, 1) + b"\x00",
    ],
)
def test_malformed_requests_end_the_connection_alone(bootstrap: str, url: str, sent: bytes) -> None:
    assert answer(bootstrap, sent + request(18, 0, b"")) == b""
    with nexo.connect(url) as client:
        client.store.set("still", 1)
        assert client.store.get("still") == 1


def test_requests_past_the_limit_wait_and_are_answered_in_order(bootstrap: str) -> None:
    """The first is a long poll, so that all others wait for it."""
    count = limits.PIPELINED_REQUESTS + 50
    name = b"\x00\x04held"
    create = struct.pack(">i", 1) + name
    poll = struct.pack(">iiiibi", -1, 1_000, 1, 1_000_000, 0, 1) + name
    poll += struct.pack(">iiqi", 1, 0, 0, 1_000_000)
    sent = request(3, 1, create, 0) + request(1, 4, poll, 1)
    sent += b"".join(request(18, 0, b"", number) for number in range(2, count))
    host, port = bootstrap.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock, sock.makefile("rb") as of:
        sock.sendall(sent)
        for number in range(count):
            size = int.from_bytes(of.read(4), "big")
            assert int.from_bytes(of.read(size)[:4], "big") == number


def _compact(count: int) -> bytes:
    """The length of a text or an array in flexible versions."""
    found = bytearray()
    write_length(found, count, I32, flexible=True)
    return bytes(found)


def test_arrays_are_bounded_in_all() -> None:
    many = struct.pack(">i", limits.KAFKA_ELEMENTS + 1) + bytes(limits.KAFKA_ELEMENTS + 1)
    with pytest.raises(ProtocolError, match="elements"):
        Schema("a:[]bool", 9).read(Input(memoryview(many)), 0)


@pytest.mark.parametrize("given", [b"\x81\x02" + b"\x05\x00" * 257, b"\xff\xff\xff\x7f"])
def test_tagged_fields_are_bounded(given: bytes) -> None:
    """Each is two bytes, so many of them take long to be skipped."""
    with pytest.raises(ProtocolError, match="tagged"):
        Input(memoryview(given)).skip_tags()


def test_tagged_fields_count_as_elements() -> None:
    many = limits.KAFKA_ELEMENTS // 2 + 1
    given = _compact(many) + b"\x01\x05\x00" * many + b"\x00"
    with pytest.raises(ProtocolError, match="tagged"):
        Schema("a:[ b:i8@9+ ]", 0).read(Input(memoryview(given)), 0)


def test_texts_are_no_longer_than_kafkas() -> None:
    """They become names, and are repeated in answers."""
    schema, most = Schema("a:str", 0), 32_767
    for size in (most, most + 1):
        given = Input(memoryview(_compact(size) + b"x" * size + b"\x00"))
        if size == most:
            assert schema.read(given, 0) == {"a": "x" * size}
        else:
            with pytest.raises(ProtocolError, match="text"):
                schema.read(given, 0)


def test_random_requests_crash_nothing(
    bootstrap: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Sound heads with random bodies, and sound bodies with bits flipped; see `fuzz_kafka`, too."""
    chance = random.Random(SEED)
    keys = [api for api in APIS.values() if api.key is not ApiKey.SASL_AUTHENTICATE]
    for _ in range(300):
        api = chance.choice(keys)
        version = chance.randint(api.low, api.high)
        body = bytearray(b"\x00" if api.is_flexible(version) else b"")
        if chance.random() < 0.5:
            body += chance.randbytes(chance.randrange(60))
        else:
            body += chance.choice([bytes(40), b"\x00\x00\x00\x01" * 8, b"\x02" * 30, b"\xff" * 20])
            body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        host, port = bootstrap.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(request(api.key, version, bytes(body)))
    with nexo.connect(url) as client:
        client.stream("after").create()
        assert client.stream("after").publish(b"still here").offset == 0
    ours = (record for record in caplog.records if record.name.startswith("nexo"))
    assert not [record for record in ours if record.levelname == "ERROR"]


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "i8": st.integers(-128, 127),
    "i16": st.integers(-(2**15), 2**15 - 1),
    "i32": st.integers(-(2**31), 2**31 - 1),
    "u16": st.integers(0, 2**16 - 1),
    "i64": st.integers(-(2**63), 2**63 - 1),
    "str": st.none() | st.text(max_size=20),
    "bytes": st.none() | st.binary(max_size=20),
    "uuid": st.uuids(),
}


def messages(schema: Schema, version: int) -> st.SearchStrategy[KafkaMessage]:
    def of(fields: list[Field]) -> st.SearchStrategy[KafkaMessage]:
        here = [field for field in fields if field.low <= version <= field.high]
        return st.fixed_dictionaries({field.name: one(field) for field in here})

    def one(field: Field) -> st.SearchStrategy[Any]:
        inner: st.SearchStrategy[Any] = of(field.fields) if field.fields else _VALUES[field.kind]
        if field.is_array:
            return st.none() | st.lists(inner, max_size=3)
        return st.none() | inner if field.is_nullable else inner

    return of(schema.fields)


@given(st.data())
def test_what_is_written_is_read_back(data: st.DataObject) -> None:
    api = data.draw(st.sampled_from([api for api in APIS.values() if api.response.fields]))
    version = data.draw(st.integers(api.low, api.high))
    schema = data.draw(st.sampled_from([api.request, api.response]))
    message = data.draw(messages(schema, version))
    out = bytearray()
    schema.write(out, message, version)
    found = schema.read(Input(memoryview(out)), version)
    assert _plain(found, message) == message
    if out:
        with pytest.raises(ProtocolError):
            schema.read(Input(memoryview(out)[:-1]), version)


def _plain(found: object, like: object) -> object:
    """Without the fields that the version does not have."""
    if isinstance(like, dict) and isinstance(found, dict):
        return {name: _plain(found[name], value) for name, value in like.items()}
    if isinstance(like, list) and isinstance(found, list):
        return [_plain(one, other) for one, other in zip(found, like, strict=True)]
    return bytes(found) if isinstance(found, memoryview) else found
