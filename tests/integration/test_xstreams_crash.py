"""Streams on the server survive its death, with who holds what (SPEC J2)."""

from __future__ import annotations

import threading

import pytest

import nexo
from nexo import testing
from nexo.errors import ConnectionLost, NexoError, RequestTimeout
from nexo.xstreams import NexoStreamBroker
from tests.timing import wait_until


def test_a_server_killed_under_load_loses_nothing_acknowledged(
    served: testing.Process,
) -> None:
    added: list[str] = []
    acked: set[str] = set()
    unsure: list[NexoError] = []
    stop = threading.Event()

    def produce() -> None:
        with NexoStreamBroker(f"{served.url}?while_down=fail&timeout=5") as broker:
            while not stop.is_set():
                try:
                    added.append(broker.xadd("s", len(added)))
                except (ConnectionLost, RequestTimeout):
                    stop.wait(0.02)

    def consume(name: str) -> None:
        with NexoStreamBroker(f"{served.url}?while_down=fail&timeout=5") as broker:
            while not stop.is_set():
                try:
                    taken = broker.xreadgroup("g", name, "s", 10, 50)
                    for message in taken[::2]:  # every other one is left pending
                        if broker.xack("s", "g", [message.id]):
                            acked.add(message.id)
                except (ConnectionLost, RequestTimeout) as error:
                    unsure.append(error)
                    stop.wait(0.02)

    with NexoStreamBroker(served.url) as broker:
        broker.create_group("s", "g", "0")
        threads = [threading.Thread(target=produce)]
        threads += [threading.Thread(target=consume, args=(f"c{n}",)) for n in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                _let_work(added, acked)
                served.kill()
                served.start()
            _let_work(added, acked)
        finally:
            stop.set()
        for thread in threads:
            thread.join()
        _check_whole(broker, added, acked, len(unsure))


def test_what_was_deleted_stays_away_from_a_killed_server(served: testing.Process) -> None:
    """Enough messages for the log to drop some of them (F4)."""
    with NexoStreamBroker(served.url) as broker:
        broker.create_group("s", "g", "0")
        kept: list[str] = []
        for _ in range(2):
            added = [broker.xadd("s", n) for n in range(1_500)]
            assert broker.xdel("s", kept + added[:-2]) == len(kept) + 1_498
            kept = added[-2:]
            served.kill()
            served.start()
            assert [message.id for message in broker.xrange("s")] == kept
            assert broker.get_group_info("s")[0].lag == 2
        with nexo.connect(served.url) as client:
            assert client.stream("s").info().partitions[0].start_offset == 2_998
        assert [each.id for each in broker.xreadgroup("g", "a", "s", 10)] == kept


def test_reads_wait_through_a_restart(served: testing.Process) -> None:  # SPEC O3
    done: list[int] = []
    failed: list[NexoError] = []
    stop = threading.Event()

    def read() -> None:
        with NexoStreamBroker(served.url) as broker:
            while not stop.is_set():
                try:
                    lengths = broker.xlen("s"), len(broker.xrange("s"))
                    pending = broker.xpending("s", "g")
                    done.append(sum(lengths) + len(pending))
                except NexoError as error:
                    failed.append(error)

    def reads() -> None:
        goal = len(done) + 50
        wait_until(lambda: len(done) >= goal, what="no progress")

    with NexoStreamBroker(served.url) as broker:
        broker.create_group("s", "g", "0")
        broker.xadd("s", 1)
        broker.xreadgroup("g", "a", "s")
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for end in (served.terminate, served.kill):
            reads()
            end()
            served.start()
        reads()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []
    assert set(done) == {3}


def _let_work(added: list[str], acked: set[str]) -> None:
    """Until there is some progress at both ends."""
    goals = len(added) + 20, len(acked) + 5
    wait_until(lambda: len(added) >= goals[0] and len(acked) >= goals[1], what="no progress")


def _check_whole(broker: NexoStreamBroker, added: list[str], acked: set[str], unsure: int) -> None:
    stored = [message.id for message in broker.xrange("s")]
    assert set(added) <= set(stored)
    pending = {each.id for each in broker.xpending("s", "g")}
    unread = {message.id for message in broker.xreadgroup("g", "last", "s", 10_000)}
    assert not pending & unread
    assert not acked & (pending | unread)
    # An ack whose reply was lost may have counted: everything else is somewhere.
    lost = set(stored) - acked - pending - unread
    assert len(lost) <= unsure


@pytest.mark.parametrize("graceful", [True, False])
def test_workers_read_on_after_a_restart(nexo_server: testing.Server, graceful: bool) -> None:
    with NexoStreamBroker(nexo_server.url) as broker:
        broker.create_group("s", "g", "0")
        first, second = broker.xadd("s", 1), broker.xadd("s", 2)
        broker.xreadgroup("g", "a", "s")
    if graceful:
        nexo_server.stop()
    else:
        nexo_server.crash()
    nexo_server.start()
    with NexoStreamBroker(nexo_server.url) as broker:
        assert [(each.id, each.consumer) for each in broker.xpending("s", "g")] == [(first, "a")]
        assert [message.id for message in broker.xreadgroup("g", "b", "s", 10)] == [second]
        [claimed] = broker.xautoclaim("s", "g", "b", 0, 1)
        assert (claimed.id, claimed.delivery_count) == (first, 2)
        assert broker.xack("s", "g", [first, second]) == 2
