"""What proves the lead, and what is never deleted (SPEC N3, Q5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nexo.replication import bases, fence, lease
from nexo.replication.fence import LEASES_KEPT
from nexo.replication.lease import LeaderLease
from nexo.replication.log_objects import FORMAT, LogObject, Mark
from nexo.replication.objects import LOG, AlreadyThere, log_key
from nexo.replication.shipping import LeadLost, Shipper
from nexo.storage.disk.recording import FileCreated
from tests.memory_objects import MemoryObjects


def lease_of(term: str) -> LeaderLease:
    return LeaderLease(term, term, "", 3_000, 0, {})


def lead(store: MemoryObjects, term: str, first: int, renewals: int) -> int:
    """Renew as a leader does, and delete what it deletes; returns the newest number."""
    for number in range(first, first + renewals):
        assert lease.create(store, number, lease_of(term))
        lease.forget(store, first, number)
    return first + renewals - 1


def test_a_leader_that_slept_through_any_number_of_renewals_meets_its_successor() -> None:
    store = MemoryObjects()
    old = lead(store, "old", 0, 30)
    newest = lead(store, "new", old + 1, 500)
    assert len(store.objects) < 2 * LEASES_KEPT
    assert not lease.create(store, old + 1, lease_of("old"))
    lead(store, "newest", newest + 1, 500)
    assert not lease.create(store, old + 1, lease_of("old"))


def test_so_does_one_whose_last_try_had_worked_without_its_knowing() -> None:
    store = MemoryObjects()
    known = lead(store, "old", 0, 30)
    assert lease.create(store, known + 1, lease_of("old"))  # its reply was lost
    lead(store, "new", known + 2, 500)
    assert lease.create(store, known + 1, lease_of("old")), "it is found to be its own"
    assert not lease.create(store, known + 2, lease_of("old"))


def test_a_standby_that_slept_before_its_put_does_not_lead_with_a_number_that_was_used() -> None:
    store = MemoryObjects()
    seen = 9
    lead(store, "leader", 0, 500)
    assert lease.get(store, seen + 1) is None
    assert not lease.take(store, seen + 1, lease_of("standby"))
    newest = lease.newest(store)
    assert newest is not None
    assert newest[1].term == "leader"
    assert lease.take(store, newest[0] + 1, lease_of("standby"))


def test_few_leases_are_kept_of_many_terms() -> None:
    store = MemoryObjects()
    number = -1
    for term in range(40):
        number = lead(store, f"term {term}", number + 1, 50)
    assert len(store.objects) <= 40 * 2 + LEASES_KEPT + 1


@pytest.mark.parametrize("lapsed", [False, True])
def test_a_renewal_in_an_emptied_bucket_does_not_count(lapsed: bool) -> None:
    store = MemoryObjects()
    number = lead(store, "old", 0, 3)
    store.objects.clear()
    assert not lease.renew(store, number + 1, lease_of("old"), lambda: lapsed)


def test_after_a_lapse_a_renewal_counts_only_if_nothing_newer_is_there() -> None:
    store = MemoryObjects()
    number = lead(store, "old", 0, 3)
    lease.create(store, number + 9, lease_of("new"))
    assert not lease.renew(store, number + 1, lease_of("old"), lambda: True)
    store.objects.clear()
    number = lead(store, "old", 0, 3)
    assert lease.renew(store, number + 1, lease_of("old"), lambda: True)


def test_a_damaged_lease_still_says_that_somebody_leads() -> None:
    store = MemoryObjects()
    lead(store, "old", 0, 2)
    key = max(store.objects)
    store.objects[key] = b"?" + store.objects[key][1:-1] + b"?"
    found = lease.newest(store)
    assert found is not None
    assert found[0] == 1
    assert found[1].server == ""
    assert not lease.create(store, 1, lease_of("new"))


@pytest.mark.parametrize(
    ("numbers", "broken"),
    [([], True), ([0], False), ([0, 1], False), ([7], True), ([5, 7], True), ([0, 6, 7], False)],
)
def test_a_history_is_broken_if_the_newest_lease_has_no_predecessor(
    numbers: list[int], broken: bool
) -> None:
    assert fence.is_broken(numbers) is broken


@pytest.mark.parametrize("lengths", [[1], [5], [1, 1, 1], [3, 1, 4, 1, 5], [1000, 1, 2000]])
def test_the_first_object_of_each_term_is_found_with_few_reads(lengths: list[int]) -> None:
    terms = [str(term) for term, length in enumerate(lengths) for _ in range(length)]
    keys = [log_key(number) for number in range(len(terms))]
    read: list[str] = []

    def term_of(key: str) -> str:
        read.append(key)
        return terms[int(key[4:])]

    found = list(fence.first_of_each(keys, term_of))
    assert found == [log_key(sum(lengths[:term])) for term in range(len(lengths))]
    assert len(read) <= 2 + len(lengths) * 12


class _Log:
    """A log of two leaders; the second makes bases and collects."""

    def __init__(self) -> None:
        self.store = MemoryObjects()
        self.old = Shipper("one/first/a", Mark())
        self.ship(self.old, 3)
        end = Mark(self.old.number, self.old.epoch, self.old.writer)
        self.new = Shipper("two/second/b", end)

    def ship(self, shipper: Shipper, objects: int) -> None:
        for _ in range(objects):
            if shipper.leads:
                shipper.gather([FileCreated("f")])
            put = shipper.next_put(0)
            assert put is not None
            self.store.create(put.key, put.data)
            shipper.created()

    def collect(self, times: int) -> None:
        for _ in range(times):
            self.ship(self.new, 10)
            bases.publish(self.store, bases.Manifest(self.new.number, self.new.epoch, [], []))
            bases.collect(self.store)


@pytest.mark.parametrize("bases_made", [2, 3, 9])
def test_a_leader_paused_below_any_number_of_bases_is_refused_its_next_number(
    bases_made: int,
) -> None:
    log = _Log()
    log.collect(bases_made)
    log.old.gather([FileCreated("late")])
    put = log.old.next_put(0)
    assert put is not None
    with pytest.raises(AlreadyThere):
        log.store.create(put.key, put.data)
    found = log.store.get(put.key)
    assert found is not None
    with pytest.raises(LeadLost):
        log.old.refused(found)
    assert len(log.store.list(LOG)) < 30


def test_only_the_first_claim_of_a_term_is_kept() -> None:
    """A broker whose process restarts often claims often: the process before it has ended."""
    store, end = MemoryObjects(), Mark()
    for restart in range(50):
        shipper = Shipper(f"one/term/{restart}", end)
        put = shipper.next_put(0)
        assert put is not None
        store.create(put.key, put.data)
        end = Mark(shipper.number + 1, shipper.epoch, shipper.writer)
    for number in (49, 50):
        bases.publish(store, bases.Manifest(number, number, [], []))
    bases.collect(store)
    assert store.list(LOG) == [log_key(0), log_key(49)]


def test_the_newest_object_is_never_deleted(tmp_path: Path) -> None:
    """By it a leader sees that the bucket still has what it put."""
    log = _Log()
    log.ship(log.new, 5)
    bases.publish(log.store, bases.Manifest(log.new.number, log.new.epoch, [], []))
    bases.collect(log.store)
    assert log.store.list(LOG)[-1] == log_key(log.new.number - 1)


def test_an_object_that_cannot_be_read_is_kept() -> None:
    store = MemoryObjects()
    for number in range(4):
        writer = "one/a/p" if number < 2 else "one/b/q"
        store.create(log_key(number), FORMAT.pack(LogObject(1, writer, []), number))
    store.objects[log_key(2)] = b"damaged"
    for number in (3, 4):
        bases.publish(store, bases.Manifest(number, 1, [], []))
    bases.collect(store)
    assert log_key(2) in store.objects
