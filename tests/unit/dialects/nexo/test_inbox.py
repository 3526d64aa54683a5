"""The cutter of frames: any cut of the byte stream gives the same frames."""

from __future__ import annotations

import pytest

from nexo.dialects.nexo.inbox import GROWTH, LEAST_BYTES, Inbox
from nexo.errors import PayloadTooLarge, ProtocolError
from nexo.protocol.frames import HEADER, FrameKind, frame

MIB = 1024**2

Frame = tuple[int, int, int, bytes]


def collect(max_payload: int = 1 << 20, buffer_bytes: int = 64) -> tuple[Inbox, list[Frame]]:
    got: list[Frame] = []

    def sink(kind: int, meta: int, request_id: int, payload: memoryview) -> None:
        got.append((kind, meta, request_id, bytes(payload)))

    return Inbox(memoryview(bytearray(buffer_bytes)), max_payload, sink), got


def feed(inbox: Inbox, data: bytes, step: int) -> None:
    while data:
        buffer = inbox.buffer()
        size = min(step, len(buffer), len(data))
        buffer[:size] = data[:size]
        inbox.received(size)
        data = data[size:]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 10, 11, 64, 1000])
def test_frames_arrive_whole_however_the_bytes_are_cut(step: int) -> None:
    frames = [
        (1, op, op * 7, bytes([op]) * size) for op, size in enumerate([0, 1, 53, 54, 55, 900])
    ]
    inbox, got = collect()
    feed(inbox, b"".join(frame(*parts) for parts in frames), step)
    assert got == frames
    assert not inbox.midway


@pytest.mark.parametrize("step", [1, 3, 11, 64, 1000])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_an_inbox_that_is_halted_keeps_what_arrived_and_goes_on_with_it(
    step: int, every: int
) -> None:
    """SPEC A3: nothing is lost or handed on twice, wherever it was halted."""
    got: list[Frame] = []

    def sink(kind: int, meta: int, request_id: int, payload: memoryview) -> None:
        assert not inbox.halted
        got.append((kind, meta, request_id, bytes(payload)))
        if len(got) % every == 0:
            inbox.halt()

    inbox = Inbox(memoryview(bytearray(64)), 1 << 20, sink)
    frames = [(1, n, n, bytes([n]) * size) for n, size in enumerate([0, 1, 0, 2, 3, 0, 900, 54, 7])]
    data = b"".join(frame(*parts) for parts in frames)
    while data:
        size = min(step, len(inbox.buffer()), len(data))
        inbox.buffer()[:size] = data[:size]
        inbox.received(size)
        data = data[size:]
        while inbox.halted:
            inbox.go_on()
            inbox.received(0)
    assert got == frames
    assert not inbox.midway


def test_two_connections_share_one_buffer_without_mixing_their_bytes() -> None:
    shared = memoryview(bytearray(64))
    got: list[tuple[str, bytes]] = []
    inboxes = [
        Inbox(shared, 1000, lambda *f, name=name: got.append((name, bytes(f[3]))))
        for name in ("a", "b")
    ]
    data = {name: frame(FrameKind.REQUEST, 0, 1, name.encode() * 20) for name in ("a", "b")}
    for cut in (slice(0, 13), slice(13, None)):
        for inbox, name in zip(inboxes, data, strict=True):
            feed(inbox, data[name][cut], 64)
    assert got == [("a", b"a" * 20), ("b", b"b" * 20)]


def test_an_oversize_frame_is_refused_from_its_header_alone() -> None:  # PROTOCOL: frame
    inbox, got = collect(max_payload=100)
    with pytest.raises(PayloadTooLarge, match="101 bytes"):
        feed(inbox, frame(FrameKind.REQUEST, 0, 1, bytes(101))[:10], 10)
    assert got == []


def test_an_unknown_frame_type_is_refused() -> None:
    inbox, _ = collect()
    with pytest.raises(ProtocolError, match="0x47"):
        feed(inbox, b"GET / HTTP/1.1\r\n", 64)


@pytest.mark.parametrize("step", [1, 3, 17, 64, 1000])
def test_each_frame_is_counted_in_the_read_that_ends_it(step: int) -> None:
    metas = [3, 3, 3, 5, 3, 7, 7]
    data = b"".join(frame(FrameKind.REQUEST, meta, 1, b"x" * meta * 15) for meta in metas)
    inbox, got = collect()
    counted: list[int] = []
    while data:
        size = min(step, len(inbox.buffer()), len(data))
        feed(inbox, data[:size], size)
        for meta, count in (*inbox.runs, (inbox.op, inbox.count)):
            counted += [meta] * count
        assert counted == metas[: len(got)]
        data = data[size:]
    assert counted == metas


def test_a_read_that_cannot_be_trusted_counts_nothing_twice() -> None:
    inbox, _ = collect()
    feed(inbox, frame(FrameKind.REQUEST, 3, 1) * 4, 64)
    assert inbox.count == 4
    with pytest.raises(ProtocolError):
        feed(inbox, b"\x63" * 20, 64)
    assert inbox.count == 0
    assert not inbox.runs


def test_bytes_that_are_only_announced_take_no_memory() -> None:
    """G2: ten bytes that announce 10 MiB took 10 MiB."""
    inbox, got = collect(16 * MIB, 256 * 1024)
    size = 10 * MIB
    head = HEADER.pack(FrameKind.REQUEST, 3, 1, size)
    feed(inbox, head, len(head))
    arrived = len(head)
    while arrived < len(head) + size:
        room = inbox.buffer()
        assert arrived + len(room) <= max(LEAST_BYTES, GROWTH * arrived) + len(head)
        room[:] = bytes(len(room))
        arrived += len(room)
        inbox.received(len(room))
    assert [len(payload) for *_, payload in got] == [size]


def test_a_limit_that_a_request_raises_counts_from_the_next_one_on() -> None:
    shared = memoryview(bytearray(4096))
    inbox = Inbox(shared, 10, lambda *_: inbox.admit(shared, 100))
    feed(inbox, frame(FrameKind.REQUEST, 1, 1) + frame(FrameKind.REQUEST, 3, 2, b"x" * 100), 4096)
    with pytest.raises(PayloadTooLarge, match="limit is 100"):
        feed(inbox, frame(FrameKind.REQUEST, 3, 2, b"x" * 101), 4096)
