"""Blocks and requests of the queue: round trips, and bytes that make no sense."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from nexo.errors import NexoError, ProtocolError
from nexo.model.blocks import (
    block_count,
    check_block,
    cut,
    id_text,
    id_texts,
    pack_block,
    pack_id,
    parse_id,
    unpack_id,
    values_of,
)
from nexo.protocol.ops import Op
from nexo.protocol.queue import (
    Jobs,
    PeekJobs,
    Piece,
    PopJobs,
    PopReply,
    PushHead,
    RenewLeases,
    Settled,
    SettleJobs,
    encode,
    encode_head,
    pieces_of,
    split_head,
)
from tests.memory_files import MemoryFiles
from tests.unit.brokers.queue.desk import Desk

Values = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=20)


@given(values=Values, data=st.data())
def test_any_cut_of_a_block_gives_the_values_between(values: list[bytes], data: Any) -> None:
    block = pack_block(values)
    assert check_block(block) == block_count(block) == len(values)
    start = data.draw(st.integers(0, len(values) - 1))
    stop = data.draw(st.integers(start + 1, len(values)))
    assert values_of(*cut(block, start, stop)) == values[start:stop]


@given(values=Values, at=st.integers(0, 10_000), new=st.integers(0, 255))
def test_a_block_with_a_changed_byte_is_refused_or_sound(
    values: list[bytes], at: int, new: int
) -> None:
    block = bytearray(pack_block(values))
    block[at % len(block)] = new
    try:
        count = check_block(bytes(block))
    except ProtocolError:
        return
    assert len(values_of(*cut(bytes(block), 0, count))) == count


@given(raw=st.binary(max_size=60))
def test_bytes_that_are_no_block_are_refused(raw: bytes) -> None:
    try:
        count = check_block(raw)
    except ProtocolError:
        return
    assert pack_block(values_of(*cut(raw, 0, count))) == raw


@given(runs=st.lists(Values, min_size=1, max_size=4), cut_at=st.integers(0, 200))
def test_deliveries_round_trip_and_short_ones_are_refused(
    runs: list[list[bytes]], cut_at: int
) -> None:
    pieces = [Piece(100 * n, len(values), n, 5) for n, values in enumerate(runs)]
    raw = encode_head(PopReply(1, 2, 3, pieces))
    for values in runs:
        raw += b"".join(cut(pack_block(values), 0, len(values)))
    head, rest = split_head(raw)
    delivery = msgspec.msgpack.decode(head, type=PopReply)
    assert [values for _, values in pieces_of(delivery, rest)] == runs
    if cut_at < len(head) + 4:
        try:
            split_head(raw[:cut_at])
        except ProtocolError:
            return
        raise AssertionError("a head that is cut short is refused")


@given(incarnation=st.integers(0, 2**64 - 1), job=st.integers(0, 2**64 - 2))
def test_ids_are_the_same_as_bytes_and_as_text(incarnation: int, job: int) -> None:
    raw = pack_id(incarnation, job)
    assert parse_id(id_text(incarnation, job)) == raw
    assert unpack_id(raw) == (incarnation, job)
    assert id_texts(incarnation, job, 2) == [id_text(incarnation, job + n) for n in range(2)]


Numbers = st.integers(-(2**63), 2**63 - 1)
Requests = st.one_of(
    st.binary(max_size=80),
    st.builds(lambda n, w: encode(PopJobs("q", n, w)), Numbers, Numbers),
    st.builds(
        lambda how, token, runs: encode(SettleJobs("q", how, [Settled(token, runs)])),
        st.integers(-1, 5), Numbers, st.lists(Numbers, max_size=6),
    ),
    st.builds(lambda tokens, ms: encode(RenewLeases("q", tokens, ms)), st.lists(Numbers), Numbers),
    st.builds(lambda n, o: encode(PeekJobs("q", n, o)), Numbers, Numbers),
    st.builds(lambda ids: encode(Jobs("q", ids)), st.lists(st.text(max_size=40))),
    st.builds(
        lambda *numbers, block: encode_head(PushHead("q", *numbers)) + block,
        Numbers, Numbers, Numbers, block=st.one_of(st.binary(max_size=40), Values.map(pack_block)),
    ),
)  # fmt: skip
Ops = st.sampled_from([op for op in Op if op.name.startswith("Q_")])


@given(requests=st.lists(st.tuples(Ops, Requests), min_size=1, max_size=10))
def test_any_bytes_are_answered_or_refused_and_the_queue_works_on(
    requests: list[tuple[Op, bytes]],
) -> None:
    desk = Desk(MemoryFiles())
    peer = desk.client()
    peer.create("q")
    for op, payload in requests:
        peer.send(op, payload)
        desk.runtime.end_turn()
    desk.service.connection_closed(peer)
    other = desk.client()
    other.create("other")
    other.push_many("other", [b"\x01still here"])
    assert list(other.pop("other")[1].values()) == [b"\x01still here"]
    assert all(
        reply is None or isinstance(reply, bytes | NexoError) for reply in peer.replies.values()
    )
