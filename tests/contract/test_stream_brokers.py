"""What every `StreamBroker` does, whichever it is (SPEC J)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from nexo import testing, xstreams
from nexo.errors import ConnectionLost, InvalidInput, InvalidName, InvalidOption, NotFound
from nexo.xstreams import ConsumerGroupInfo, DeadLetter, StreamBroker, StreamMessage
from tests.contract.redis_server import redis_server
from tests.timing import often_within, wait_until

Make = Callable[..., StreamBroker]


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="session")
def shared_nexo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with testing.server(data_dir=tmp_path_factory.mktemp("nexo")) as url:
        yield url


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis), "nexo"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes brokers of one kind, on an empty server; all are closed at the end."""
    made: list[StreamBroker] = []
    url = "memory://"
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
        with redis.Redis.from_url(url) as client:
            client.flushall()
    elif request.param == "nexo":
        url = request.getfixturevalue("nexo_url")

    def connect(**limits: int) -> StreamBroker:
        made.append(xstreams.connect(url, **limits))
        return made[-1]

    yield connect
    for broker in made:
        broker.close()


@pytest.fixture
def broker(make: Make) -> StreamBroker:
    return make()


def add(broker: StreamBroker, count: int, stream: str = "tasks") -> list[str]:
    return [broker.xadd(stream, {"n": n}) for n in range(count)]


def ids(messages: list[StreamMessage]) -> list[str]:
    return [message.id for message in messages]


def numbers(messages: list[StreamMessage]) -> list[int]:
    return [message.data["n"] for message in messages]


def info(broker: StreamBroker, group: str = "workers") -> ConsumerGroupInfo:
    return next(each for each in broker.get_group_info("tasks") if each.name == group)


def key(message_id: str) -> tuple[int, ...]:
    return tuple(map(int, message_id.split("-")))


class TestAdding:
    def test_ids_are_ms_seq_and_strictly_increase(self, broker: StreamBroker) -> None:  # SPEC J2
        added = add(broker, 50)
        assert [key(each) for each in added] == sorted({key(each) for each in added})
        now_ms = time.time() * 1000
        assert all(abs(key(each)[0] - now_ms) < 60_000 for each in added)

    @pytest.mark.parametrize(
        "data",
        [
            {"type": "email", "to": "user@example.com", "nested": {"list": [1, 2.5, None, True]}},
            "text with é and 🚀",
            "",
            b"\x00\xff raw",
            b"",
            None,
            0,
            [],
        ],
        ids=repr,
    )
    def test_data_comes_back_as_it_went(self, broker: StreamBroker, data: Any) -> None:  # SPEC A4
        broker.create_group("tasks", "workers")
        message_id = broker.xadd("tasks", data)
        [message] = broker.xreadgroup("workers", "w1", "tasks")
        assert message == StreamMessage(message_id, data, key(message_id)[0], 1)
        assert type(message.data) is type(data)

    def test_nobody_shares_the_objects_added(self, broker: StreamBroker) -> None:
        data = {"n": 1}
        broker.xadd("tasks", data)
        data["n"] = 2
        assert numbers(broker.xrange("tasks")) == [1]

    def test_data_that_is_no_json_is_refused(self, broker: StreamBroker) -> None:
        with pytest.raises(InvalidInput):
            broker.xadd("tasks", {"bad": object()})
        assert broker.xlen("tasks") == 0


class TestGroups:
    def test_a_group_from_0_gets_everything_and_from_the_end_only_new(
        self, broker: StreamBroker
    ) -> None:
        add(broker, 2)
        assert broker.create_group("tasks", "all", "0")
        assert broker.create_group("tasks", "new")
        broker.xadd("tasks", {"n": 2})
        assert numbers(broker.xreadgroup("all", "a", "tasks", 10)) == [0, 1, 2]
        assert numbers(broker.xreadgroup("new", "a", "tasks", 10)) == [2]

    def test_a_group_starts_behind_an_id(self, broker: StreamBroker) -> None:
        added = add(broker, 4)
        broker.create_group("tasks", "workers", added[1])
        assert numbers(broker.xreadgroup("workers", "w1", "tasks", 10)) == [2, 3]

    def test_a_group_behind_a_future_id_is_given_nothing_below_it(  # SPEC J2
        self, make: Make
    ) -> None:
        broker, future = make(max_stream_length=5), "99999999999999-0"
        add(broker, 1)
        assert broker.create_group("tasks", "workers", future)
        add(broker, 3)
        assert broker.xreadgroup("workers", "w1", "tasks", 10, 30) == []
        assert (info(broker).lag, info(broker).last_delivered_id) == (0, future)
        add(broker, 6)
        broker.xtrim("tasks", 1)
        assert (info(broker).lag, info(broker).trimmed_unread) == (0, 0)
        assert broker.xreadgroup("workers", "w1", "tasks", 10) == []
        assert (info(broker).total_pending, info(broker).last_delivered_id) == (0, future)

    def test_a_group_behind_a_future_id_goes_on_when_it_is_reached(  # SPEC J2
        self, broker: StreamBroker
    ) -> None:
        start = f"{int(time.time() * 1000) + 300}-3"
        broker.create_group("tasks", "workers", start)
        added = add(broker, 1)
        assert key(added[0]) < key(start)
        while sum(key(each) > key(start) for each in added) < 3:
            added += add(broker, 1)
            time.sleep(0.005)  # the ids follow the clock
        above = [each for each in added if key(each) > key(start)]
        assert info(broker).lag == 3
        assert ids(broker.xreadgroup("workers", "w1", "tasks", 2, 1_000)) == above[:2]
        assert (info(broker).lag, info(broker).last_delivered_id) == (1, above[1])
        assert ids(broker.xreadgroup("workers", "w1", "tasks", 10)) == above[2:]

    def test_a_group_of_an_empty_stream_shows_the_id_it_starts_behind(
        self, broker: StreamBroker
    ) -> None:
        broker.create_group("tasks", "workers", "5-3")
        assert info(broker).last_delivered_id == "5-3"
        [added] = add(broker, 1)
        assert (info(broker).lag, info(broker).last_delivered_id) == (1, "5-3")
        assert ids(broker.xreadgroup("workers", "w1", "tasks", 10)) == [added]

    def test_a_group_creates_its_stream(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "$")
        assert broker.xlen("tasks") == 0
        assert broker.xreadgroup("workers", "w1", "tasks") == []
        add(broker, 1)
        assert numbers(broker.xreadgroup("workers", "w1", "tasks")) == [0]

    def test_creating_a_group_again_keeps_its_position(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        add(broker, 3)
        broker.xreadgroup("workers", "w1", "tasks", 2)
        assert not broker.create_group("tasks", "workers", "0")
        assert numbers(broker.xreadgroup("workers", "w1", "tasks", 10)) == [2]

    def test_groups_are_independent(self, broker: StreamBroker) -> None:
        for group in ("analytics", "audit"):
            broker.create_group("events", group, "0")
        add(broker, 5, "events")
        assert numbers(broker.xreadgroup("analytics", "a", "events", 10)) == [0, 1, 2, 3, 4]
        assert numbers(broker.xreadgroup("audit", "a", "events", 10)) == [0, 1, 2, 3, 4]

    def test_a_deleted_group_is_gone_with_what_it_had_pending(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        add(broker, 2)
        broker.xreadgroup("workers", "w1", "tasks")
        assert broker.delete_group("tasks", "workers")
        assert not broker.delete_group("tasks", "workers")
        assert broker.get_group_info("tasks") == []
        broker.create_group("tasks", "workers", "0")
        assert numbers(broker.xreadgroup("workers", "w1", "tasks", 10)) == [0, 1]

    def test_a_deleted_consumer_says_what_it_had_and_nobody_gets_it(
        self, broker: StreamBroker
    ) -> None:
        broker.create_group("tasks", "workers", "0")
        add(broker, 3)
        broker.xreadgroup("workers", "w1", "tasks", 2)
        assert broker.delete_consumer("tasks", "workers", "w1") == 2
        assert broker.delete_consumer("tasks", "workers", "w1") == 0
        assert broker.xpending("tasks", "workers") == []
        assert broker.xautoclaim("tasks", "workers", "w2", 0, 10) == []
        assert numbers(broker.xreadgroup("workers", "w2", "tasks", 10)) == [2]


class TestReading:
    def test_each_message_goes_to_one_consumer_of_a_group(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        add(broker, 6)
        first = broker.xreadgroup("workers", "w1", "tasks", 4)
        second = broker.xreadgroup("workers", "w2", "tasks", 4)
        assert numbers(first) == [0, 1, 2, 3]
        assert numbers(second) == [4, 5]
        assert broker.xreadgroup("workers", "w1", "tasks", 4) == []

    def test_one_message_is_read_unless_more_are_asked_for(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        add(broker, 2)
        assert numbers(broker.xreadgroup("workers", "w1", "tasks")) == [0]

    def test_many_threads_get_every_message_once(self, make: Make) -> None:
        broker, count, threads = make(), 400, 8
        broker.create_group("tasks", "workers", "0")

        def consume(number: int) -> list[int]:
            mine: list[int] = []
            while messages := broker.xreadgroup("workers", f"w{number}", "tasks", 7):
                mine += numbers(messages)
                assert broker.xack("tasks", "workers", ids(messages)) == len(messages)
            return mine

        add(broker, count)
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(consume, range(threads)))
        assert sorted(n for part in parts for n in part) == list(range(count))
        assert info(broker).total_pending == info(broker).lag == 0


class TestBlocking:
    def test_a_read_without_waiting_returns_at_once(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers")
        begun_s = time.monotonic()
        assert broker.xreadgroup("workers", "w1", "tasks", 1, 0) == []
        assert time.monotonic() - begun_s < 10

    def test_a_blocked_read_ends_after_its_time(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers")
        begun_s = time.monotonic()
        assert broker.xreadgroup("workers", "w1", "tasks", 1, 120) == []
        assert 0.1 < time.monotonic() - begun_s < 10

    @pytest.mark.parametrize("block_ms", [10_000, None])
    def test_a_blocked_read_wakes_with_the_message(  # SPEC J4
        self, broker: StreamBroker, block_ms: int | None
    ) -> None:
        broker.create_group("tasks", "workers")
        assert often_within(0.05, lambda: self._delay_s(broker, block_ms))

    def _delay_s(self, broker: StreamBroker, block_ms: int | None) -> float:
        """How long a message takes from being added to being read by one who waits for it."""
        woken: list[float] = []
        waiting = threading.Event()

        def consume() -> None:
            waiting.set()
            assert broker.xreadgroup("workers", "w1", "tasks", 1, block_ms)
            woken.append(time.monotonic())

        reader = threading.Thread(target=consume)
        reader.start()
        waiting.wait()
        time.sleep(0.05)  # the read must be blocked, which nothing shows from outside
        added_s = time.monotonic()
        broker.xadd("tasks", {"n": 0})
        reader.join(10)
        return woken[0] - added_s

    def test_a_blocked_read_blocks_nobody_else(self, broker: StreamBroker) -> None:  # SPEC J4
        broker.create_group("quiet", "workers")
        broker.create_group("tasks", "workers")
        with ThreadPoolExecutor(4) as pool:
            blocked = [
                pool.submit(broker.xreadgroup, "workers", f"w{n}", "quiet", 1, None)
                for n in range(4)
            ]
            for n in range(20):
                broker.xadd("tasks", {"n": n})
            read = broker.xreadgroup("workers", "w1", "tasks", 20)
            assert broker.xack("tasks", "workers", ids(read)) == 20
            add(broker, 4, "quiet")
            got = [n for future in blocked for n in numbers(future.result(10))]
        assert sorted(got) == [0, 1, 2, 3]

    def test_a_read_blocked_for_ever_ends_when_the_broker_is_closed(
        self, broker: StreamBroker
    ) -> None:
        broker.create_group("tasks", "workers")
        with ThreadPoolExecutor(1) as pool:
            blocked = pool.submit(broker.xreadgroup, "workers", "w1", "tasks", 1, None)
            time.sleep(0.05)
            broker.close()
            with pytest.raises(ConnectionLost):
                blocked.result(5)
        with pytest.raises(ConnectionLost):
            broker.xlen("tasks")

    def test_a_blocked_read_ends_when_its_group_is_deleted(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers")
        with ThreadPoolExecutor(1) as pool:
            blocked = pool.submit(broker.xreadgroup, "workers", "w1", "tasks", 1, None)
            time.sleep(0.05)
            broker.delete_group("tasks", "workers")
            with pytest.raises(NotFound):
                blocked.result(5)


class TestAcknowledging:
    def test_an_ack_counts_what_was_pending(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 3)
        broker.xreadgroup("workers", "w1", "tasks", 2)
        assert broker.xack("tasks", "workers", added) == 2
        assert broker.xack("tasks", "workers", added) == 0
        assert broker.xpending("tasks", "workers") == []

    def test_ids_that_never_were_acknowledge_nothing(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        add(broker, 3)
        broker.xreadgroup("workers", "w1", "tasks", 3)
        assert broker.xack("tasks", "workers", ["0-0", "0-1", "1-1", "9999999999999-2"]) == 0
        assert broker.xack("tasks", "workers", []) == 0
        assert len(broker.xpending("tasks", "workers")) == 3

    def test_anyone_may_acknowledge_in_any_order(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 4)
        broker.xreadgroup("workers", "w1", "tasks", 4)
        assert broker.xack("tasks", "workers", [added[2], added[0], added[2]]) == 2
        assert [each.id for each in broker.xpending("tasks", "workers")] == [added[1], added[3]]


class TestPending:
    def test_pending_shows_owner_idle_time_and_deliveries(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 3)
        broker.xreadgroup("workers", "w1", "tasks", 2)
        broker.xreadgroup("workers", "w2", "tasks", 2)
        found = broker.xpending("tasks", "workers")
        assert [(each.id, each.consumer, each.delivery_count) for each in found] == [
            (added[0], "w1", 1),
            (added[1], "w1", 1),
            (added[2], "w2", 1),
        ]
        assert all(0 <= each.idle_ms < 10_000 for each in found)
        assert [each.id for each in broker.xpending("tasks", "workers", "w2")] == [added[2]]
        assert broker.xpending("tasks", "workers", "nobody") == []

    def test_pending_lists_more_than_a_page(self, make: Make) -> None:
        broker = make(max_pending=3_000)
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 1_100)
        assert len(broker.xreadgroup("workers", "w1", "tasks", 2_000)) == 1_100
        assert [each.id for each in broker.xpending("tasks", "workers")] == added

    def test_pending_messages_are_not_read_again(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        add(broker, 1)
        assert broker.xreadgroup("workers", "w1", "tasks")
        assert broker.xreadgroup("workers", "w1", "tasks") == []

    def test_pending_stays_with_the_name_over_a_new_connection(self, make: Make) -> None:
        broker = make()
        broker.create_group("tasks", "workers", "0")
        add(broker, 1)
        broker.xreadgroup("workers", "w1", "tasks")
        if isinstance(broker, xstreams.LocalStreamBroker):
            again: StreamBroker = broker
        else:
            broker.close()
            again = make()
        assert [each.consumer for each in again.xpending("tasks", "workers")] == ["w1"]


class TestClaiming:
    def test_stale_messages_go_to_the_claimer_counted_once_more(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 3)
        broker.xreadgroup("workers", "w1", "tasks", 3)
        claimed = broker.xautoclaim("tasks", "workers", "w2", 0, 2)
        assert [(each.id, each.data, each.delivery_count) for each in claimed] == [
            (added[0], {"n": 0}, 2),
            (added[1], {"n": 1}, 2),
        ]
        owners = [(each.consumer, each.delivery_count) for each in _pending(broker)]
        assert owners == [("w2", 2), ("w2", 2), ("w1", 1)]

    def test_fresh_messages_are_not_claimed(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        add(broker, 1)
        broker.xreadgroup("workers", "w1", "tasks")
        assert broker.xautoclaim("tasks", "workers", "w2", 60_000, 10) == []

    def test_messages_become_stale_with_time(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        add(broker, 1)
        broker.xreadgroup("workers", "w1", "tasks")
        claimed = wait_until(lambda: broker.xautoclaim("tasks", "workers", "w2", 40, 10))
        assert numbers(claimed) == [0]
        assert broker.xautoclaim("tasks", "workers", "w3", 30_000, 10) == []

    def test_a_consumer_claims_its_own_stale_messages(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        add(broker, 2)
        broker.xreadgroup("workers", "w1", "tasks", 2)
        claimed = broker.xautoclaim("tasks", "workers", "w1", 0, 10)
        assert [(each.data["n"], each.delivery_count) for each in claimed] == [(0, 2), (1, 2)]

    def test_a_claimer_is_registered(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        assert broker.xautoclaim("tasks", "workers", "w9", 0) == []
        assert [each.name for each in info(broker).consumers] == ["w9"]

    def test_two_claimers_never_get_the_same(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 200)
        broker.xreadgroup("workers", "dead", "tasks", 200)
        time.sleep(0.52)  # and what is claimed must not be stale again before it is acked

        def claim(number: int) -> list[str]:
            mine: list[str] = []
            while got := broker.xautoclaim("tasks", "workers", f"w{number}", 500, 9):
                mine += ids(got)
                broker.xack("tasks", "workers", ids(got))
            return mine

        with ThreadPoolExecutor(4) as pool:
            parts = list(pool.map(claim, range(4)))
        assert sorted((each for part in parts for each in part), key=key) == added

    def test_acknowledged_messages_are_not_claimed(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 2)
        broker.xreadgroup("workers", "w1", "tasks", 2)
        broker.xack("tasks", "workers", added[:1])
        assert ids(broker.xautoclaim("tasks", "workers", "w2", 0, 10)) == added[1:]


class TestRenewing:
    def test_renewed_messages_are_idle_anew_and_count_as_before(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 3)
        broker.xreadgroup("workers", "w1", "tasks", 3)
        wait_until(lambda: min(each.idle_ms for each in _pending(broker)) >= 40)
        assert broker.xrenew("tasks", "workers", "w1", [added[2], added[0]]) == [added[2], added[0]]
        first, second, third = _pending(broker)
        assert max(first.idle_ms, third.idle_ms) + 30 < second.idle_ms
        assert {(each.consumer, each.delivery_count) for each in (first, second, third)} == {
            ("w1", 1)
        }
        assert ids(broker.xautoclaim("tasks", "workers", "w2", second.idle_ms, 10)) == [added[1]]

    def test_only_what_the_consumer_still_has_is_renewed(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 5)
        broker.xreadgroup("workers", "w1", "tasks", 4)
        broker.xack("tasks", "workers", added[:1])
        broker.xautoclaim("tasks", "workers", "w2", 0, 1)
        broker.xdel("tasks", added[2:3])
        assert broker.xrenew("tasks", "workers", "w1", [*added, "1-1"]) == [added[3]]
        assert broker.xrenew("tasks", "workers", "w3", added) == []
        assert broker.xrenew("tasks", "workers", "w1", []) == []
        assert [(each.id, each.consumer) for each in _pending(broker)] == [
            (added[1], "w2"), (added[3], "w1"),
        ]  # fmt: skip
        assert [each.name for each in info(broker).consumers] == ["w1", "w2"]


class TestTheStream:
    def test_length_counts_messages(self, broker: StreamBroker) -> None:
        add(broker, 3)
        assert broker.xlen("tasks") == 3

    def test_a_range_goes_by_id(self, broker: StreamBroker) -> None:
        added = add(broker, 5)
        assert ids(broker.xrange("tasks")) == added
        assert ids(broker.xrange("tasks", added[1], added[3])) == added[1:4]
        assert ids(broker.xrange("tasks", f"({added[1]}", f"({added[3]}")) == added[2:3]
        assert ids(broker.xrange("tasks", count=2)) == added[:2]
        assert ids(broker.xrange("tasks", added[3], added[1])) == []
        assert {each.delivery_count for each in broker.xrange("tasks")} == {0}

    def test_a_range_end_without_a_sequence_covers_its_millisecond(
        self, broker: StreamBroker
    ) -> None:
        added = add(broker, 5)
        first, last = added[0].split("-")[0], added[-1].split("-")[0]
        assert ids(broker.xrange("tasks", first, last)) == added
        assert broker.xrange("tasks", "0", str(int(first) - 1)) == []
        assert broker.xrange("tasks", str(int(last) + 1)) == []

    def test_a_deleted_message_is_gone_for_everybody(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 4)
        broker.xreadgroup("workers", "w1", "tasks", 2)
        assert broker.xdel("tasks", [added[0], added[2], "1-1"]) == 2
        assert broker.xdel("tasks", [added[0]]) == 0
        assert broker.xlen("tasks") == 2
        assert ids(broker.xrange("tasks")) == [added[1], added[3]]
        assert [each.id for each in broker.xpending("tasks", "workers")] == [added[1]]
        assert info(broker).lag == 1
        assert ids(broker.xreadgroup("workers", "w1", "tasks", 10)) == [added[3]]
        assert info(broker).trimmed_unread == 0

    def test_trimming_keeps_the_newest(self, broker: StreamBroker) -> None:
        added = add(broker, 10)
        assert broker.xtrim("tasks", 4) == 6
        assert broker.xtrim("tasks", 4) == 0
        assert ids(broker.xrange("tasks")) == added[6:]
        assert broker.xtrim("tasks", 0) == 4
        assert broker.xlen("tasks") == 0

    def test_trimming_counts_around_deleted_messages(self, broker: StreamBroker) -> None:
        added = add(broker, 10)
        broker.xdel("tasks", [added[1], added[7], added[9]])
        assert broker.xtrim("tasks", 3) == 4
        assert ids(broker.xrange("tasks")) == [added[5], added[6], added[8]]

    def test_ids_go_on_behind_everything_trimmed(self, broker: StreamBroker) -> None:
        last = add(broker, 3)[-1]
        broker.xtrim("tasks", 0)
        assert key(broker.xadd("tasks", {"n": 3})) > key(last)


class TestLimits:
    def test_a_stream_trims_itself_and_says_how_many_were_unread(  # SPEC J3
        self, make: Make
    ) -> None:
        broker = make(max_stream_length=10)
        broker.create_group("tasks", "workers", "0")
        broker.create_group("tasks", "lazy", "0")
        added = add(broker, 8)
        broker.xreadgroup("workers", "w1", "tasks", 8)
        more = add(broker, 12)
        assert broker.xlen("tasks") == 10
        assert ids(broker.xrange("tasks")) == more[2:]
        assert info(broker).trimmed_unread == 2
        assert info(broker, "lazy").trimmed_unread == 10
        assert broker.xack("tasks", "workers", added) == 0
        assert (info(broker).total_pending, info(broker).lag) == (0, 10)
        assert ids(broker.xreadgroup("lazy", "l1", "tasks", 100)) == more[2:]

    def test_trimming_by_hand_counts_unread_too(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        add(broker, 6)
        broker.xreadgroup("workers", "w1", "tasks", 2)
        broker.xtrim("tasks", 1)
        assert (info(broker).trimmed_unread, info(broker).lag) == (3, 1)
        assert info(broker).total_pending == 0

    def test_a_group_created_anew_starts_its_count_anew(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        add(broker, 6)
        broker.xtrim("tasks", 1)
        broker.delete_group("tasks", "workers")
        broker.create_group("tasks", "workers", "0")
        assert info(broker).trimmed_unread == 0

    def test_a_consumer_that_holds_all_it_may_gets_no_more(self, make: Make) -> None:  # SPEC J3
        broker = make(max_pending=3)
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 6)
        assert len(broker.xreadgroup("workers", "w1", "tasks", 10)) == 3
        assert broker.xreadgroup("workers", "w1", "tasks", 10, 30) == []
        assert len(broker.xreadgroup("workers", "w2", "tasks", 2)) == 2
        broker.xack("tasks", "workers", added[:2])
        assert ids(broker.xreadgroup("workers", "w1", "tasks", 10)) == added[5:]

    def test_a_full_consumer_that_waits_goes_on_when_it_has_room(self, make: Make) -> None:
        broker = make(max_pending=1)
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 2)
        broker.xreadgroup("workers", "w1", "tasks")
        with ThreadPoolExecutor(1) as pool:
            blocked = pool.submit(broker.xreadgroup, "workers", "w1", "tasks", 1, 10_000)
            time.sleep(0.05)
            broker.xack("tasks", "workers", added[:1])
            assert ids(blocked.result(5)) == added[1:]

    def test_a_full_consumer_does_not_keep_another_from_being_woken(self, make: Make) -> None:
        broker = make(max_pending=1)
        broker.create_group("tasks", "workers", "0")
        add(broker, 1)
        broker.xreadgroup("workers", "full", "tasks")
        with ThreadPoolExecutor(2) as pool:
            full = pool.submit(broker.xreadgroup, "workers", "full", "tasks", 1, 500)
            time.sleep(0.05)
            free = pool.submit(broker.xreadgroup, "workers", "free", "tasks", 1, 10_000)
            time.sleep(0.05)
            broker.xadd("tasks", {"n": 1})
            assert numbers(free.result(5)) == [1]
            assert full.result(5) == []

    @pytest.mark.parametrize("limit", ["max_stream_length", "max_pending"])
    @pytest.mark.parametrize("value", [0, -1, 1 << 63])
    def test_limits_must_be_positive(self, make: Make, limit: str, value: int) -> None:
        with pytest.raises(InvalidOption, match=limit):
            make(**{limit: value})


class TestWorker:
    @pytest.mark.parametrize("size", [8 * 1024**2, 10 * 1024**2 - 100])
    def test_the_largest_message_can_be_dead_lettered(  # SPEC J5
        self, broker: StreamBroker, size: int
    ) -> None:
        data, seen = b"\xff" * size, list[Any]()
        large = broker.xadd("tasks", data)
        small = broker.xadd("tasks", "small")

        def handle(message: StreamMessage) -> None:
            seen.append(message.id)
            assert message.id == small

        broker.create_group("tasks", "workers", "0")
        worker = xstreams.StreamWorker(
            broker, "tasks", "workers", "w1", handle, max_deliveries=1, block_ms=0
        )
        while worker.run_once():
            pass
        assert (seen, worker.handled, worker.dead_lettered) == ([large, small], 1, 1)
        letter = DeadLetter.of(broker.xrange("tasks.dlq")[0])
        assert letter.id == large
        assert letter.data == data or (letter.data, letter.omitted_bytes) == (None, size)
        assert letter.data == data or size > 8 * 1024**2
        assert broker.xpending("tasks", "workers") == []

    def test_two_workers_with_a_slow_handler_handle_each_message_once(self, make: Make) -> None:
        broker = make()
        add(broker, 6)
        runs: list[int] = []

        def handle(message: StreamMessage) -> None:
            runs.append(message.data["n"])
            time.sleep(0.25)  # with the five behind it: longer than ``min_idle_ms``

        options: dict[str, Any] = {"block_ms": 20, "min_idle_ms": 1_000}
        names = ("w1", "w2")
        workers = [
            xstreams.StreamWorker(broker, "tasks", "workers", name, handle, **options)
            for name in names
        ]
        with workers[0], workers[1]:
            wait_until(lambda: sum(each.handled for each in workers) == 6)
        assert sorted(runs) == list(range(6))


class TestInfo:
    def test_the_totals_add_up(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 10)
        broker.xreadgroup("workers", "w1", "tasks", 4)
        broker.xreadgroup("workers", "w2", "tasks", 3)
        broker.xack("tasks", "workers", [added[0], added[5]])
        broker.xautoclaim("tasks", "workers", "w3", 0, 2)
        [found] = broker.get_group_info("tasks")
        pending = broker.xpending("tasks", "workers")
        assert found.total_pending == sum(each.pending for each in found.consumers) == len(pending)
        assert {each.name: each.pending for each in found.consumers} == {
            name: sum(one.consumer == name for one in pending) for name in ("w1", "w2", "w3")
        }
        assert found.total_pending + found.lag + 2 == broker.xlen("tasks")
        assert found.last_delivered_id == added[6]
        assert all(
            abs(time.time() * 1000 - each.last_activity_ms) < 60_000 for each in found.consumers
        )

    def test_lag_is_what_was_not_delivered(self, broker: StreamBroker) -> None:
        added = add(broker, 6)
        for group, start in (("new", "$"), ("all", "0"), ("mid", added[2])):
            broker.create_group("tasks", group, start)
        assert [(g.name, g.lag) for g in broker.get_group_info("tasks")] == [
            ("all", 6), ("mid", 3), ("new", 0),
        ]  # fmt: skip
        assert info(broker, "new").last_delivered_id == added[-1]
        assert info(broker, "all").last_delivered_id == "0-0"

    def test_lag_is_right_around_deletes_and_trims(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        added = add(broker, 10)
        broker.xreadgroup("workers", "w1", "tasks", 3)
        broker.xdel("tasks", [added[4], added[8]])
        assert info(broker).lag == 5
        broker.xtrim("tasks", 4)
        assert info(broker).lag == 4

    def test_consumers_appear_with_their_first_read(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers")
        broker.xreadgroup("workers", "w1", "tasks")
        assert [(each.name, each.pending) for each in info(broker).consumers] == [("w1", 0)]


class TestUnknownNames:
    def test_group_reads_of_an_unknown_stream_or_group_are_not_found(
        self, broker: StreamBroker
    ) -> None:
        broker.xadd("known", 1)
        for stream in ("unknown", "known"):
            for ask in (
                lambda name: broker.xreadgroup("g", "c", name),
                lambda name: broker.xreadgroup("g", "c", name, 1, None),
                lambda name: broker.xpending(name, "g"),
                lambda name: broker.xpending(name, "g", "c"),
                lambda name: broker.xautoclaim(name, "g", "c", 0),
                lambda name: broker.xrenew(name, "g", "c", ["1-1"]),
                lambda name: broker.delete_consumer(name, "g", "c"),
            ):
                with pytest.raises(NotFound):
                    ask(stream)
        assert broker.xlen("unknown") == 0

    def test_an_unknown_stream_is_empty(self, broker: StreamBroker) -> None:
        assert broker.xlen("unknown") == 0
        assert broker.xrange("unknown") == []
        assert broker.xtrim("unknown", 1) == 0
        assert broker.xdel("unknown", ["1-1"]) == 0
        assert broker.get_group_info("unknown") == []
        assert broker.xack("unknown", "g", ["1-1"]) == 0
        assert not broker.delete_group("unknown", "g")
        broker.xadd("known", 1)
        assert broker.xack("known", "g", ["1-1"]) == 0


class TestBadInput:
    @pytest.mark.parametrize("name", ["", "a b", "../up", "x" * 256, "ü"])
    def test_bad_names_are_refused(self, broker: StreamBroker, name: str) -> None:
        for ask in (
            lambda: broker.xadd(name, 1),
            lambda: broker.create_group(name, "g"),
            lambda: broker.create_group("s", name),
            lambda: broker.xreadgroup(name, "c", "s"),
            lambda: broker.xreadgroup("g", name, "s"),
            lambda: broker.xautoclaim("s", "g", name, 0),
            lambda: broker.xlen(name),
        ):
            with pytest.raises(InvalidName):
                ask()

    @pytest.mark.parametrize("bad", ["", "x", "1-", "1-2-3", "-1", "99999999999999999999999", "$"])
    def test_bad_ids_are_refused(self, broker: StreamBroker, bad: str) -> None:
        added = add(broker, 1)
        broker.create_group("tasks", "workers", "0")
        for ask in (
            lambda: broker.xack("tasks", "workers", [added[0], bad]),
            lambda: broker.xdel("tasks", [added[0], bad]),
            lambda: broker.xrange("tasks", bad),
            lambda: broker.xrange("tasks", "-", bad),
        ):
            with pytest.raises(InvalidInput):
                ask()
        assert broker.xlen("tasks") == 1

    def test_a_range_cannot_start_behind_the_greatest_id(self, broker: StreamBroker) -> None:
        add(broker, 1)
        greatest = f"{(1 << 64) - 1}-{(1 << 64) - 1}"
        assert broker.xrange("tasks", greatest) == []
        with pytest.raises(InvalidInput):
            broker.xrange("tasks", f"({greatest}")

    def test_one_text_is_no_list_of_ids(self, broker: StreamBroker) -> None:
        with pytest.raises(InvalidInput):
            broker.xack("tasks", "workers", "1-1")

    def test_bad_numbers_are_refused(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers")
        bad: Any
        huge = 1 << 63
        for bad in (0, -1, 1.5, True, huge, huge**5):
            with pytest.raises(InvalidInput):
                broker.xreadgroup("workers", "w", "tasks", bad)
            with pytest.raises(InvalidInput):
                broker.xautoclaim("tasks", "workers", "w", 0, bad)
            with pytest.raises(InvalidInput):
                broker.xrange("tasks", count=bad)
        for bad in (-1, 0.5, huge, huge**5):
            with pytest.raises(InvalidInput):
                broker.xreadgroup("workers", "w", "tasks", 1, bad)
            with pytest.raises(InvalidInput):
                broker.xautoclaim("tasks", "workers", "w", bad)
            with pytest.raises(InvalidInput):
                broker.xtrim("tasks", bad)
        with pytest.raises(InvalidInput):
            broker.create_group("tasks", "other", "beginning")

    def test_the_greatest_numbers_are_taken(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        added, most = add(broker, 2), (1 << 63) - 1
        assert ids(broker.xrange("tasks", count=most)) == added
        assert ids(broker.xreadgroup("workers", "w1", "tasks", most, most)) == added
        assert broker.xautoclaim("tasks", "workers", "w2", most, most) == []
        assert ids(broker.xautoclaim("tasks", "workers", "w2", 0, most)) == added
        assert broker.xtrim("tasks", most) == 0

    def test_a_wait_of_any_length_ends_with_a_message(self, broker: StreamBroker) -> None:
        broker.create_group("tasks", "workers", "0")
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(broker.xreadgroup, "workers", "w1", "tasks", 1, (1 << 63) - 1)
            time.sleep(0.05)
            added = add(broker, 1)
            assert ids(reading.result(5)) == added

    @pytest.mark.parametrize("bad", [None, 7, b"1-1", ["1-1", 7], [None]])
    def test_ids_that_are_no_texts_are_refused(self, broker: StreamBroker, bad: Any) -> None:
        broker.create_group("tasks", "workers")
        for ask in (
            lambda: broker.xack("tasks", "workers", bad),
            lambda: broker.xdel("tasks", bad),
            lambda: broker.xrenew("tasks", "workers", "w1", bad),
        ):
            with pytest.raises(InvalidInput):
                ask()


def _pending(broker: StreamBroker) -> list[xstreams.PendingMessage]:
    return broker.xpending("tasks", "workers")
