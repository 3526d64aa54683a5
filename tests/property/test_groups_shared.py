"""Shared groups against a model that keeps one entry per message (SPEC F1-F4, F6, F8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from nexo.brokers.stream.groups.records import SharedRecord, SharedSnapshot
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.options.stream import SharedOptions

PARTITIONS = 2
MAX_DELIVERIES = 2
MAX_ACK_PENDING = 12
ACK_WAIT_MS = 100

Spot = tuple[int, int]

_RECORD = msgspec.msgpack.Decoder(SharedRecord)
_SNAPSHOT = msgspec.msgpack.Decoder(SharedSnapshot)


@dataclass
class Message:
    """One message as the naive model sees it."""

    state: str = "new"  # new, held, back, done, parked
    holder: str = ""
    expires_ms: int = 0
    due_ms: int = 0
    deliveries: int = 0
    started: bool = False
    replayed: bool = False


@dataclass
class Model:
    messages: dict[Spot, Message] = field(default_factory=dict)
    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)

    def held_by(self, consumer: str) -> list[Message]:
        return [m for m in self.messages.values() if m.state == "held" and m.holder == consumer]

    def floor(self, partition: int) -> int:
        for offset in range(self.ends[partition]):
            if self.messages[partition, offset].state not in ("done", "parked"):
                return offset
        return self.ends[partition]

    def give_back(self, message: Message, now_ms: int, *, counted: bool, delay_ms: int = 0) -> None:
        message.state, message.holder = "back", ""
        message.due_ms = now_ms + delay_ms
        if counted:
            message.deliveries += 1
            if message.deliveries >= MAX_DELIVERIES:
                message.state = "parked"
        message.started = False

    def expire(self, now_ms: int) -> None:
        for message in self.messages.values():
            if message.state == "held" and message.expires_ms <= now_ms:
                self.give_back(message, now_ms, counted=message.started)


class SharedGroupMachine(RuleBasedStateMachine):
    """Every consumer reports its starts, so that the model knows what counts."""

    ordered_by_key = False
    consumers = Bundle("consumers")

    def __init__(self) -> None:
        super().__init__()
        options = SharedOptions(
            ack_wait_ms=ACK_WAIT_MS,
            max_deliveries=MAX_DELIVERIES,
            max_ack_pending=MAX_ACK_PENDING,
            ordered_by="key" if self.ordered_by_key else None,
        )
        self.group = SharedGroup([0] * PARTITIONS, options)
        self.replica = SharedGroup([0] * PARTITIONS, options)
        self.model = Model()
        self.now_ms = 1_000
        self.names = 0

    def key_of(self, spot: Spot) -> bytes | None:
        key = spot[1] * 7 % 4
        return None if key == 3 else b"k%d" % key

    def keys_of(self, partition: int, first: int, end: int) -> Mapping[int, bytes | None]:
        return {offset: self.key_of((partition, offset)) for offset in range(first, end)}

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 9))
    def publish(self, partition: int, count: int) -> None:
        for _ in range(count):
            self.model.messages[partition, self.model.ends[partition]] = Message()
            self.model.ends[partition] += 1

    @rule(target=consumers)
    def join(self) -> str:
        self.names += 1
        self.group.join(f"c{self.names}", reports_starts=True)
        return f"c{self.names}"

    @rule(consumer=consumes(consumers), told=st.booleans())
    def leave(self, consumer: str, told: bool) -> None:
        held = self.model.held_by(consumer)
        unstarted = [
            (partition, offset, offset + 1)
            for (partition, offset), message in self.model.messages.items()
            if message in held and not message.started
        ]
        assert self.group.leave(consumer, self.now_ms, unstarted if told else None) == len(held)
        for message in held:
            self.model.give_back(message, self.now_ms, counted=message.started)

    @rule(consumer=consumers, limit=st.integers(1, 15))
    def deliver(self, consumer: str, limit: int) -> None:
        self.model.expire(self.now_ms)
        least = self.surely_available(limit)
        got = self.group.deliver(consumer, limit, self.model.ends, self.now_ms, self.keys_of)
        assert least <= sum(d.end - d.first for d in got) <= limit
        for delivery in got:
            for offset in range(delivery.first, delivery.end):
                message = self.model.messages[delivery.partition, offset]
                assert message.state in ("new", "back"), "held by two, or finished"
                assert message.due_ms <= self.now_ms
                assert delivery.attempt == message.deliveries + 1
                assert not self.overtakes(delivery.partition, offset)
                message.state, message.holder = "held", consumer
                message.expires_ms = delivery.expires_ms

    def surely_available(self, limit: int) -> int:
        """What must be delivered: all that is due, unless ``max_ack_pending`` may hold it back."""
        messages = self.model.messages.values()
        if sum(m.state in ("new", "back", "held") for m in messages) > MAX_ACK_PENDING:
            return 0
        due = [m for m in messages if m.state in ("new", "back") and m.due_ms <= self.now_ms]
        return min(limit, len(due))

    def overtakes(self, partition: int, offset: int) -> bool:
        """Whether a message is handed out before an earlier one of its key."""
        return False

    @rule(data=st.data(), consumer=consumers, verb=st.sampled_from(["ack", "nack", "release"]))
    def settle(self, data: st.DataObject, consumer: str, verb: str) -> None:
        partition, first = self.some_spot(data, consumer)
        end = first + data.draw(st.integers(1, 6))
        delay_ms = data.draw(st.sampled_from([0, 30]))
        settled = [(partition, first, end)]
        match verb:
            case "ack":
                refused = self.group.ack(consumer, self.group.generation, settled)
            case "nack":
                refused = self.group.nack(
                    consumer, self.group.generation, settled, self.now_ms, delay_ms=delay_ms
                )
            case _:
                refused = self.group.release(consumer, self.group.generation, settled)
        self.check_refusals(
            consumer, settled[0], {o for r in refused for o in range(r.first, r.end)}
        )
        for offset in range(first, end):
            message = self.model.messages.get((partition, offset))
            if message and message.state == "held" and message.holder == consumer:
                self.settle_in_model(message, verb, delay_ms)

    def some_spot(self, data: st.DataObject, consumer: str) -> Spot:
        """Mostly one the consumer holds."""
        messages = self.model.messages.items()
        held = [spot for spot, m in messages if m.state == "held" and m.holder == consumer]
        anywhere = st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 30))
        return data.draw(st.one_of(st.sampled_from(held), anywhere) if held else anywhere)

    def check_refusals(
        self, consumer: str, settled: tuple[int, int, int], refused: set[int]
    ) -> None:
        for offset in range(settled[1], settled[2]):
            message = self.model.messages.get((settled[0], offset))
            mine = message and message.state == "held" and message.holder == consumer
            assert (offset in refused) is not bool(mine)

    def settle_in_model(self, message: Message, verb: str, delay_ms: int) -> None:
        if verb == "ack":
            message.state = "done"
        elif verb == "nack":
            self.model.give_back(message, self.now_ms, counted=True, delay_ms=delay_ms)
        else:
            self.model.give_back(message, self.now_ms, counted=False)

    @rule(data=st.data(), consumer=consumers)
    def start(self, data: st.DataObject, consumer: str) -> None:
        partition, first = self.some_spot(data, consumer)
        self.group.start(consumer, self.group.generation, [(partition, first, first + 4)])
        for offset in range(first, first + 4):
            message = self.model.messages.get((partition, offset))
            if message and message.state == "held" and message.holder == consumer:
                message.started = True

    @rule(passed_ms=st.integers(1, ACK_WAIT_MS))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.group.expire(self.now_ms)
        self.model.expire(self.now_ms)

    @rule(consumer=consumers)
    def extend(self, consumer: str) -> None:
        self.model.expire(self.now_ms)
        self.group.expire(self.now_ms)
        self.group.extend(consumer, self.group.generation, self.now_ms)
        for message in self.model.held_by(consumer):
            message.expires_ms = self.now_ms + ACK_WAIT_MS

    @rule(partition=st.integers(0, PARTITIONS - 1), first=st.integers(0, 30), n=st.integers(1, 5))
    def skip(self, partition: int, first: int, n: int) -> None:
        end = min(first + n, self.model.ends[partition])
        if first < end:
            self.group.skip([(partition, first, end)])
            for offset in range(first, end):
                self.model.messages[partition, offset].state = "done"

    @rule(again=st.booleans())
    def settle_parked(self, again: bool) -> None:
        parked = [m for m in self.model.messages.values() if m.state == "parked"]
        count = self.group.replay() if again else self.group.discard()
        assert count == len(parked)
        for message in parked:
            message.state, message.deliveries = ("back" if again else "done"), 0
            message.replayed = again

    @rule(partition=st.integers(0, PARTITIONS - 1), offset=st.integers(0, 30))
    def seek(self, partition: int, offset: int) -> None:
        offset = min(offset, self.model.ends[partition])
        self.group.seek({partition: offset})
        for (place, number), message in self.model.messages.items():
            if message.state == "held":
                self.model.give_back(message, self.now_ms, counted=False)
            if place == partition and number >= offset:
                self.model.messages[place, number] = Message()
            elif place == partition and message.state != "parked":
                message.state = "done"

    @rule()
    def crash(self) -> None:
        members = list(self.group.members)
        saved = msgspec.msgpack.encode(self.group.snapshot())
        self.group = SharedGroup.restore(_SNAPSHOT.decode(saved))
        for consumer in members:
            self.group.join(consumer, reports_starts=True)
        for message in self.model.messages.values():
            if message.state in ("held", "back"):
                message.state, message.holder, message.started = "back", "", False
                message.due_ms = 0

    @invariant()
    def the_floor_is_over_contiguous_finished_messages_only(self) -> None:
        for partition in range(PARTITIONS):
            floor = self.model.floor(partition)
            assert self.group.floor(partition) == floor

    @invariant()
    def holdings_parked_and_lag_are_those_of_the_model(self) -> None:
        messages = self.model.messages.items()
        known = {spot: self.group.record(*spot) for spot, _ in messages}
        held = {spot: r.consumer for spot, r in known.items() if r.state == "in_flight"}
        assert held == {spot: m.holder for spot, m in messages if m.state == "held"}
        parked = {(p.partition, o) for p in self.group.parked(999) for o in range(p.first, p.end)}
        assert parked == {spot for spot, m in messages if m.state == "parked"}
        lag = sum(each.lag for each in self.group.status(self.model.ends))
        assert lag == sum(m.state in ("new", "held", "back") for _, m in messages)
        assert len(held) <= MAX_ACK_PENDING

    @invariant()
    def the_journal_alone_gives_the_same_state(self) -> None:
        for record in self.group.drain():
            self.replica.apply(_RECORD.decode(msgspec.msgpack.encode(record)))
        assert self.replica.snapshot() == self.group.snapshot()

    @invariant()
    def a_deadline_is_known_while_anything_is_held(self) -> None:
        expiries = [m.expires_ms for m in self.model.messages.values() if m.state == "held"]
        deadline = self.group.next_deadline()
        if expiries:
            assert deadline is not None
            assert deadline <= min(expiries)

    def teardown(self) -> None:
        """Nothing is lost: one consumer that acks everything gets all that is left."""
        self.now_ms += 10 * ACK_WAIT_MS
        self.model.expire(self.now_ms)
        self.group.join("last")
        while got := self.group.deliver("last", 5, self.model.ends, self.now_ms, self.keys_of):
            ranges = [(d.partition, d.first, d.end) for d in got]
            assert not self.group.ack("last", self.group.generation, ranges)
        assert [self.group.floor(p) for p in range(PARTITIONS)] == self.model.ends


class KeyedGroupMachine(SharedGroupMachine):
    """The same with ``ordered_by='key'``: one of a key at a time, in order."""

    ordered_by_key = True

    def surely_available(self, limit: int) -> int:
        messages = self.model.messages
        if sum(m.state in ("new", "back", "held") for m in messages.values()) > MAX_ACK_PENDING:
            return 0
        held = {(p, self.key_of((p, o))) for (p, o), m in messages.items() if m.state == "held"}
        late = {
            (p, self.key_of((p, o)))
            for (p, o), m in messages.items()
            if m.state == "back" and m.due_ms > self.now_ms
        }
        keys = {
            (p, self.key_of((p, o)))
            for (p, o), m in messages.items()
            if m.state in ("new", "back") and self.key_of((p, o))
        }
        return min(limit, len(keys - held - late))

    def overtakes(self, partition: int, offset: int) -> bool:
        key = self.key_of((partition, offset))
        return key is not None and any(
            self.key_of((partition, earlier)) == key
            and self.model.messages[partition, earlier].state in ("new", "back", "held")
            and not self.model.messages[partition, earlier].replayed
            for earlier in range(offset)
        )

    @invariant()
    def no_two_messages_of_a_key_are_in_flight(self) -> None:
        held = [
            (spot[0], self.key_of(spot))
            for spot, message in self.model.messages.items()
            if message.state == "held" and self.key_of(spot)
        ]
        assert len(held) == len(set(held))


TestSharedGroup = SharedGroupMachine.TestCase
TestKeyedGroup = KeyedGroupMachine.TestCase
TestSharedGroup.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestKeyedGroup.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
