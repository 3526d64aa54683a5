"""The service: both dialects, retained messages over crashes, wills, slow readers (SPEC C)."""

from __future__ import annotations

import msgspec
import pytest

from nexo.access.grants import Grant
from nexo.access.login import Identity
from nexo.access.users import User
from nexo.brokers.pubsub import records
from nexo.brokers.pubsub.message import PubSubMessage
from nexo.brokers.pubsub.retained import Retained
from nexo.errors import (
    DiskFull,
    Forbidden,
    InvalidInput,
    InvalidName,
    InvalidOption,
    NexoError,
    ProtocolError,
)
from nexo.model.pubsub import Subscribe, Will
from nexo.protocol.frames import pack_str
from nexo.protocol.messages import pack, pack_headed
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import (
    Listing,
    Publish,
    message_frame,
    parse_pushes,
)
from nexo.services.pubsub import journal as pubsub_journal
from nexo.storage.journal import Journal
from tests.memory_files import MemoryFiles
from tests.unit.brokers.pubsub.desk import Desk

KEPT = [("t", b"x")]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def retained(desk: Desk, pattern: str = "#") -> list[tuple[str, bytes]]:
    """What a new subscriber gets."""
    client = desk.client()
    client.subscribe(pattern)
    return client.received


def test_a_publish_is_answered_with_its_receivers(desk: Desk) -> None:  # SPEC C2
    subscriber, publisher = desk.client(), desk.client()
    subscriber.subscribe("home/+/sw")
    assert publisher.publish("home/kitchen/sw", b"on") == 1
    assert publisher.publish("home/kitchen", b"on") == 0
    assert subscriber.received == [("home/kitchen/sw", b"on")]


def test_a_run_is_answered_with_the_receivers_of_each_message(desk: Desk) -> None:
    desk.client().subscribe("a")
    frames = b"".join(message_frame(topic, b"\0", 1) for topic in (b"a", b"b", b"a"))
    assert desk.client().ask(Op.PUBLISH_RUN, frames) == b"\0\0\0\1\0\0\0\0\0\0\0\1"


MESSAGE = message_frame(b"a", b"\0", 1)
LONG_TOPIC = MESSAGE[:18] + b"\0\0\0\x09" + MESSAGE[22:]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        MESSAGE[:-1],
        MESSAGE + b"\x03",
        b"\x02" + MESSAGE[1:],
        LONG_TOPIC + MESSAGE,
        message_frame(b"a", b"", 1) + MESSAGE,
    ],
)
def test_a_run_that_is_none_is_refused(desk: Desk, payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        desk.client().ask(Op.PUBLISH_RUN, payload)


def test_wildcards_in_a_publish_are_refused(desk: Desk) -> None:  # SPEC C1
    with pytest.raises(InvalidName, match="wildcard"):
        desk.client().publish("a/#", b"x")


def test_the_existing_client_publishes_and_gets_its_own_frames(desk: Desk) -> None:
    old, publisher = desk.client(coded=False), desk.client(coded=False)
    assert old.ask(Op.SUB, pack_str("a/+")) == "ok"
    assert publisher.old_publish("a/b", "{}", b"\x01hi") == "ok"
    assert old.frames == [(0, pack_str("a/b") + b"\x01hi")]
    assert old.ask(Op.UNSUB, pack_str("a/+")) == "ok"
    publisher.old_publish("a/b", "{}", b"\x01again")
    assert len(old.frames) == 1


@pytest.mark.parametrize("options", ["{", '{"qos":1}', '{"retain":"yes"}'])
def test_bad_options_of_the_existing_client_get_its_text(desk: Desk, options: str) -> None:
    with pytest.raises(InvalidOption, match=r"^Invalid JSON options: "):
        desk.client(coded=False).old_publish("a", options, b"\0x")


@pytest.mark.parametrize("ttl", ["0", "-1", "1e308"])
def test_a_ttl_that_makes_no_sense_is_refused_to_the_existing_client(desk: Desk, ttl: str) -> None:
    with pytest.raises(InvalidOption, match="TTL"):
        desk.client(coded=False).old_publish("a", f'{{"retain":true,"ttl":{ttl}}}', b"\0x")


def test_the_existing_clients_retained_messages_last_an_hour(desk: Desk) -> None:
    publisher = desk.client(coded=False)
    publisher.old_publish("default", '{"retain":true}', b"\0x")
    publisher.old_publish("short", '{"retain":true,"ttl":2}', b"\0x")
    assert {topic for topic, _ in retained(desk)} == {"default", "short"}
    desk.runtime.time.now += 2_000
    assert [topic for topic, _ in retained(desk)] == ["default"]
    desk.runtime.time.now += 3_598_000
    desk.service.tick(desk.runtime.time.now)
    assert retained(desk) == []
    assert desk.service.status()["retained"] == 0


def test_a_retained_message_reaches_later_subscribers_marked_as_such(desk: Desk) -> None:
    live = desk.client()  # SPEC C3
    live.subscribe("t")
    assert desk.client().publish("t", b"x", retain=True) == 1
    late, old = desk.client(), desk.client(coded=False)
    late.subscribe("+")
    old.ask(Op.SUB, pack_str("#"))
    assert late.received == KEPT
    assert [meta for meta, _ in live.frames + late.frames + old.frames] == [1, 7, 0]
    assert late.frames[0][1].startswith(pack_str("+"))


def test_the_reply_to_a_subscription_comes_before_its_messages(desk: Desk) -> None:
    desk.client().publish("t", b"x", retain=True)
    client = desk.client()
    client.subscribe("#")
    assert client.order == ["reply", "push"]


def test_a_subscription_can_do_without_retained_messages(desk: Desk) -> None:
    desk.client().publish("t", b"x", retain=True)
    client = desk.client()
    client.subscribe("t", no_retained=True)
    client.subscribe("$share/g/t")
    assert client.received == []


def test_an_empty_retained_publish_clears_the_topic(desk: Desk) -> None:  # SPEC C3
    publisher = desk.client()
    publisher.publish("t", b"x", retain=True)
    assert publisher.publish("t", b"", retain=True) == 0
    assert retained(desk) == []
    assert retained(desk.crash()) == []


def test_a_plain_publish_leaves_the_retained_message_alone(desk: Desk) -> None:
    desk.client().publish("t", b"x", retain=True)
    desk.client().publish("t", b"y")
    assert retained(desk) == KEPT


def test_acknowledged_retained_messages_survive_a_kill(desk: Desk) -> None:  # SPEC C3
    assert desk.client().publish("t", b"x", retain=True) == 0
    again = desk.crash()
    assert retained(again) == KEPT
    again.client().publish("u", b"y", retain=True)
    assert sorted(retained(again.crash())) == [("t", b"x"), ("u", b"y")]


def test_a_retained_publish_is_answered_only_after_it_was_written(desk: Desk) -> None:
    client = desk.client()
    end_turn, desk.runtime.end_turn = desk.runtime.end_turn, lambda: False  # type: ignore[method-assign]
    client.publish("t", b"x", retain=True)
    assert client.replies == []
    end_turn()
    assert client.replies == [b"\0\0\0\0"]


def test_the_ttl_goes_on_while_the_broker_is_down(desk: Desk) -> None:  # SPEC C3
    desk.client().publish("t", b"x", retain=True, ttl_ms=100)
    desk.runtime.time.now += 100
    assert retained(desk.crash()) == []


def test_a_growing_journal_is_replaced_by_a_snapshot(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub_journal, "CHECKPOINT_BYTES", 1_000)
    client = desk.client()
    client.publish("s", b"early", retain=True)
    for number in range(200):
        client.publish("t", b"%d" % number, retain=True)
    names = desk.files.list(desk.runtime.folder)
    assert any(name.endswith(".snap") for name in names)
    client.publish("u", b"after", retain=True)
    assert sorted(retained(desk.crash())) == [("s", b"early"), ("t", b"199"), ("u", b"after")]


def test_a_full_disk_refuses_retained_messages_and_lets_others_through(desk: Desk) -> None:
    subscriber = desk.client()
    subscriber.subscribe("#")
    desk.runtime.refuses = DiskFull("no space")
    with pytest.raises(DiskFull):
        desk.client().publish("t", b"x", retain=True)
    assert subscriber.received == []
    assert desk.client().publish("t", b"x") == 1


@pytest.mark.parametrize(
    "options", [{"ttl_ms": 5}, {"retain": True, "ttl_ms": 0}, {"retain": True, "ttl_ms": 1 << 60}]
)
def test_a_ttl_that_makes_no_sense_is_refused(desk: Desk, options: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match=r"(?i)ttl"):
        desk.client().publish("t", b"x", **options)


@pytest.mark.parametrize(
    "command",
    [
        Subscribe("a/#/b"),
        Subscribe(""),
        Subscribe("a", policy="explode"),
        Subscribe("a", max_messages=0),
        Subscribe("a", max_bytes=-1),
    ],
)
def test_a_bad_subscription_is_refused_and_changes_nothing(desk: Desk, command: Subscribe) -> None:
    client = desk.client()
    with pytest.raises(InvalidInput):
        client.ask(Op.SUBSCRIBE, pack(command))
    assert desk.service.status()["subscriptions"] == 0


def test_an_unknown_option_is_named(desk: Desk) -> None:
    payload = msgspec.msgpack.encode({"pattern": "a", "qos": 2})
    with pytest.raises(InvalidOption, match="qos"):
        desk.client().ask(Op.SUBSCRIBE, payload)


def test_a_client_that_vanishes_leaves_its_will(desk: Desk) -> None:  # SPEC C5
    watcher, doomed = desk.client(), desk.client()
    watcher.subscribe("status/#")
    doomed.will("status/doomed", b"gone", retain=True)
    doomed.close()
    assert watcher.received == [("status/doomed", b"gone")]
    assert retained(desk.crash()) == [("status/doomed", b"gone")]


def test_a_client_that_says_goodbye_leaves_no_will(desk: Desk) -> None:  # SPEC C5
    watcher, leaving = desk.client(), desk.client()
    watcher.subscribe("#")
    leaving.will("status", b"gone")
    leaving.ask(Op.WILL, pack(None))
    leaving.close()
    assert watcher.received == []


def test_a_will_that_no_subscriber_could_read_is_refused(desk: Desk) -> None:  # SPEC C5
    with pytest.raises(ProtocolError, match="type byte"):
        desk.client().ask(Op.WILL, pack(Will("status", b"\x09gone")))


def test_a_will_with_a_bad_topic_is_refused(desk: Desk) -> None:
    with pytest.raises(InvalidName):
        desk.client().will("a/#", b"x")


def test_a_closed_connection_gets_nothing_more(desk: Desk) -> None:
    client = desk.client()
    client.subscribe("a")
    client.close()
    assert desk.client().publish("a", b"x") == 0
    assert desk.service.status()["subscribers"] == 0


def test_a_stalled_subscriber_costs_bounded_memory_and_nobody_else(desk: Desk) -> None:
    stalled, quick = desk.client(), desk.client()  # SPEC C4
    stalled.subscribe("a", max_messages=10)
    quick.subscribe("a")
    desk.service.connection_congested(stalled)
    for number in range(100):
        desk.client().publish("a", b"%d" % number)
    assert (len(stalled.received), len(quick.received)) == (0, 100)
    assert desk.service.status()["dropped"] == 90
    desk.service.connection_drained(stalled)
    assert [content for _, content in stalled.received] == [b"%d" % n for n in range(90, 100)]
    desk.client().publish("a", b"live")
    assert stalled.received[-1] == ("a", b"live")


def test_the_disconnect_policy_ends_the_slow_connection(desk: Desk) -> None:  # SPEC C4
    slow = desk.client()
    slow.subscribe("a", max_messages=1, policy="disconnect")
    desk.service.connection_congested(slow)
    desk.client().publish("a", b"1")
    desk.client().publish("a", b"2")
    assert "too slow" in slow.kicked
    assert desk.client().publish("a", b"3") == 0


def test_many_retained_messages_are_sent_in_chunks_before_newer_ones(desk: Desk) -> None:
    for number in range(8):
        desk.client().publish(f"t/{number}", b"x" * 100_000, retain=True)
    client = desk.client()
    client.subscribe("t/#")
    assert len(client.received) == 3
    desk.client().publish("t/0", b"newer")
    while desk.runtime.wakes:
        desk.runtime.wakes.clear()
        desk.service.tick(desk.runtime.time.now)
    assert len(client.received) == 9
    assert client.received[-1] == ("t/0", b"newer")
    assert max(map(len, client.pushes)) < 400_000


def test_subscriptions_and_retained_messages_can_be_listed(desk: Desk) -> None:
    client = desk.client()
    client.subscribe("a/#")
    client.publish("a/b", b"x", retain=True)
    reply = client.ask(Op.PS_SUBSCRIPTIONS, pack(Listing()))
    assert isinstance(reply, bytes)
    (row,) = msgspec.msgpack.decode(reply)
    assert (row["pattern"], row["policy"], row["client"]) == ("a/#", "drop_oldest", client.name)
    reply = client.ask(Op.PS_RETAINED, pack(Listing("a/+", 5)))
    assert isinstance(reply, bytes)
    assert [row["topic"] for row in msgspec.msgpack.decode(reply)] == ["a/b"]


def test_a_failed_write_is_reported_to_the_publisher(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "disk gone")

    monkeypatch.setattr(Journal, "append", refuse)
    reply = desk.client().publish("t", b"x", retain=True)
    assert isinstance(reply, NexoError)
    assert "no space left" in reply.message


def test_a_failing_snapshot_undoes_nothing_that_was_written(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:  # F5
    def refuse(*_: object) -> None:
        raise OSError(28, "no room for a snapshot")

    monkeypatch.setattr(pubsub_journal, "CHECKPOINT_BYTES", 0)
    monkeypatch.setattr(Journal, "checkpoint", refuse)
    publisher = desk.client()
    for number in range(5):
        assert publisher.publish("t", b"%d" % number, retain=True) == 0
    assert retained(desk) == [("t", b"4")]
    monkeypatch.undo()
    assert retained(desk.crash()) == [("t", b"4")]


def test_the_last_will_of_a_user_that_was_removed_is_not_published(desk: Desk) -> None:  # G15
    listener = desk.client()
    listener.subscribe("#")
    for removed in (False, True):
        client = desk.client()
        client.identity = Identity(User("ana", grants=(Grant(),)), None)
        client.will("gone", b"%d" % removed)
        if removed:
            client.identity.update(None)
        client.close()
    assert listener.received == [("gone", b"0")]


def test_headers_go_to_our_subscribers_and_to_those_who_come_later(desk: Desk) -> None:
    headers = b'{"trace":"7f"}'
    live, classic = desk.client(), desk.client(coded=False)
    live.subscribe("#")
    classic.ask(Op.SUB, pack_str("#"))
    frame = message_frame(b"t", b"\x01x", 7, headers)
    desk.client().ask(Op.PUBLISH, pack_headed(Publish(retain=True)) + frame)
    late = desk.crash().client()
    late.subscribe("#")
    for client, is_retained in ((live, False), (late, True)):
        (pushed,) = parse_pushes(b"".join(client.pushes))
        assert (pushed.topic, pushed.messages) == (b"t", [(b"\x01x", 7)])
        assert (pushed.headers, pushed.retained) == (headers, is_retained)
    assert classic.frames == [(0, pack_str("t") + b"\x01x")]


@pytest.mark.parametrize("headers", [b"x", b"[]", b"{", b'{"a":\xff}'])
def test_headers_that_are_no_json_object_are_refused(desk: Desk, headers: bytes) -> None:
    frame = message_frame(b"t", b"\x01x", 7, headers)
    with pytest.raises(ProtocolError, match="JSON object"):
        desk.client().ask(Op.PUBLISH_RUN, frame)


def test_a_message_is_encoded_once_per_dialect(desk: Desk) -> None:  # SPEC C4
    ours, old = [desk.client() for _ in range(3)], [desk.client(coded=False) for _ in range(3)]
    for client in ours:
        client.subscribe("t")
    for client in old:
        client.ask(Op.SUB, pack_str("t"))
    assert desk.client().publish("t", b"x") == 6
    pushed = [client.pushes[-1] for client in (*ours, *old)]
    assert len({id(data) for data in pushed}) == 2


def test_a_list_of_long_topics_is_short(desk: Desk) -> None:  # G6
    client = desk.client()
    for number in range(40):
        client.subscribe(f"{number:03}" + "x" * 60_000)
    reply = client.ask(Op.PS_SUBSCRIPTIONS, pack(Listing(limit=10_000)))
    assert isinstance(reply, bytes)
    assert len(msgspec.msgpack.decode(reply)) == 18


INBOX = "$reply/" + "x" * 22


def test_who_knows_an_inbox_may_use_it_and_nothing_else(desk: Desk) -> None:  # SPEC O2
    asker, answerer = desk.client(), desk.client()
    for client in (asker, answerer):
        client.identity = Identity(User("ana", grants=()), None)
    asker.subscribe(f"{INBOX}/+")
    assert answerer.publish(f"{INBOX}/1", b"x") == 1
    assert asker.received == [(f"{INBOX}/1", b"x")]
    with pytest.raises(Forbidden):
        answerer.publish(f"{INBOX}/1", b"x", retain=True)
    for pattern in ("$reply/+/+", "$reply/#", "$reply/short/1", INBOX, "#"):
        with pytest.raises(Forbidden):
            asker.ask(Op.SUBSCRIBE, pack(Subscribe(pattern)))


def test_a_folder_of_version_0_1_0_is_converted_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, frame = desk.runtime.folder, message_frame(b"t", b"\0x", 7)
    files = MemoryFiles()
    journal = Journal(files, folder)
    list(journal.recover().records)
    journal.append([msgspec.msgpack.encode([1, "t", frame, 0])], 7)
    journal.finish()
    converted = Desk(files)
    assert retained(converted) == KEPT

    def forbidden(*_: object) -> None:
        raise AssertionError("it was converted before")

    monkeypatch.setattr(Journal, "checkpoint", forbidden)
    again = converted.crash()
    assert retained(again) == KEPT
    assert again.service.status()["lost"]["count"] == 0


def test_a_snapshot_that_makes_no_sense_in_part_costs_that_part() -> None:  # F2
    files = MemoryFiles()
    journal = Journal(files, Desk().runtime.folder)
    list(journal.recover().records)
    sound = records.kept(Retained(PubSubMessage("t", b"\0x", 7), 0))
    journal.checkpoint(msgspec.msgpack.encode([b"nonsense", sound]))
    journal.finish()
    desk = Desk(files)
    assert retained(desk) == KEPT
    assert desk.service.status()["lost"]["count"] == 1
    assert desk.client().publish("u", b"y", retain=True) == 1  # it goes on writing
