"""Numbered objects: one put in flight, fencing by number, lost replies (SPEC N, DESIGN 9)."""

from __future__ import annotations

import pytest

from nexo.errors import Corrupt
from nexo.replication import log_objects, shipping
from nexo.replication.log_objects import LogObject, Mark
from nexo.replication.objects import AlreadyThere, ObjectStore, log_key
from nexo.replication.shipping import LeadLost, Put, Shipper
from nexo.storage.disk.recording import FileWritten, Operation
from tests.memory_objects import MemoryObjects


def write(text: str) -> list[Operation]:
    return [FileWritten("f", 0, text.encode())]


def do(store: ObjectStore, shipper: Shipper, put: Put | None) -> None:
    """Do a put and say how it went."""
    assert put is not None
    try:
        store.create(put.key, put.data)
    except AlreadyThere:
        found = store.get(put.key)
        assert found is not None
        shipper.refused(found)
    else:
        shipper.created()


def leader_of(writer: str, epoch: int = 1) -> Shipper:
    """A shipper that leads already; its next object is the first."""
    shipper = Shipper(writer, Mark(epoch=epoch - 1))
    shipper.leads = True
    return shipper


def read_all(store: ObjectStore, mark: Mark = Mark()) -> tuple[list[str], Mark]:  # noqa: B008
    """What the log holds from a mark on, and the mark at its end."""
    found = []
    while (data := store.get(log_key(mark.number))) is not None:
        group, mark = mark.take(data)
        for operation in group.operations:
            assert isinstance(operation, FileWritten)
            found.append(operation.data.decode())
    return found, mark


def test_operations_gather_while_a_put_is_in_flight() -> None:
    store, shipper = MemoryObjects(), leader_of("a")
    first = shipper.gather(write("1"))
    put = shipper.next_put(0)
    last = [shipper.gather(write(text)) for text in "23"][-1]
    assert shipper.next_put(0) is None, "one at a time"
    assert shipper.shipped < first
    do(store, shipper, put)
    assert first <= shipper.shipped < last
    do(store, shipper, shipper.next_put(0))
    assert shipper.shipped == last
    assert shipper.next_put(0) is None, "nothing is left"
    assert len(store.objects) == 2
    assert read_all(store)[0] == ["1", "2", "3"]


def test_puts_keep_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "MAX_GROUP_BYTES", 600)
    store, shipper = MemoryObjects(), leader_of("a")
    for _ in range(3):
        shipper.gather(write("x" * 200))
    do(store, shipper, shipper.next_put(1_000))
    do(store, shipper, shipper.next_put(1_100))
    assert len(store.objects) == 2
    assert shipper.shipped == 3


def test_a_put_whose_reply_was_lost_is_recognised() -> None:
    store, shipper = MemoryObjects(), leader_of("a")
    ticket = shipper.gather(write("1"))
    put = shipper.next_put(0)
    assert put is not None
    store.create(put.key, put.data)  # and the reply never came
    shipper.gather(write("2"))
    assert shipper.next_put(0) is None, "it is tried again as it is"
    do(store, shipper, put)
    assert shipper.shipped == ticket
    assert read_all(store)[0] == ["1"]


def test_of_two_writers_at_one_number_one_is_fenced_for_good() -> None:
    store = MemoryObjects()
    one, other = leader_of("a"), leader_of("b", 2)
    tickets = one.gather(write("a")), other.gather(write("b"))
    do(store, other, other.next_put(0))
    with pytest.raises(LeadLost, match="b leads with epoch 2"):
        do(store, one, one.next_put(0))
    assert (one.shipped < tickets[0], other.shipped) == (True, tickets[1])
    for call in (lambda: one.next_put(9), lambda: one.gather(write("x")), one.created):
        with pytest.raises(LeadLost):
            call()


def test_a_claim_fences_the_leader_and_counts_on() -> None:
    store, leader = MemoryObjects(), leader_of("a")
    leader.gather(write("1"))
    do(store, leader, leader.next_put(0))
    found, end = read_all(store)
    assert found == ["1"]
    claimer = Shipper("b", end)
    assert (claimer.leads, claimer.epoch) == (False, 2)
    do(store, claimer, claimer.next_put(0))
    leader.gather(write("too late"))
    with pytest.raises(LeadLost):
        do(store, leader, leader.next_put(0))
    claimer.gather(write("2"))
    do(store, claimer, claimer.next_put(0))
    assert read_all(store)[0] == ["1", "2"]


def test_a_claim_that_meets_another_object_must_read_on() -> None:
    store, leader, start = MemoryObjects(), leader_of("a"), Mark()
    claimer = Shipper("b", start)
    leader.gather(write("1"))
    do(store, leader, leader.next_put(0))
    with pytest.raises(LeadLost):
        do(store, claimer, claimer.next_put(0))
    found, end = read_all(store, start)
    assert found == ["1"]
    again = Shipper("b-2", end)
    do(store, again, again.next_put(0))
    assert again.leads


def test_objects_of_an_epoch_that_is_over_are_refused() -> None:
    _, mark = Mark().take(log_objects.FORMAT.pack(LogObject(2, "b", []), 0))
    assert mark == Mark(1, 2, "b")
    for group in (LogObject(1, "a", []), LogObject(2, "a", [])):
        with pytest.raises(Corrupt, match="epoch"):
            mark.take(log_objects.FORMAT.pack(group, 1))
    with pytest.raises(Corrupt, match="says that it is 7"):
        mark.take(log_objects.FORMAT.pack(LogObject(2, "b", []), 7))
