"""kombu's contract for transports, on a real server (SPEC M1): tested with kombu 5.7."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.common import Broadcast
from kombu.exceptions import ChannelError, OperationalError

import nexo
import nexo.integrations.celery
from nexo import testing
from nexo.errors import ConnectionLost
from nexo.model.names import name_of
from tests.timing import wait_until

REPO = Path(__file__).parents[2]


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with Connection(url) as connection:
        yield connection


@contextmanager
def consuming(
    connection: Connection, *queues: Queue, prefetch: int = 0, no_ack: bool = False
) -> Iterator[Callable[[int], list[Any]]]:
    """Gives a function that drains events until so many messages came."""
    found: list[Any] = []
    with connection.channel() as channel:
        channel.basic_qos(0, prefetch, False)
        consumer = Consumer(
            channel,
            list(queues),
            on_message=found.append,
            no_ack=no_ack,
            accept=["json", "text/plain"],
        )

        def drain(count: int) -> list[Any]:
            while len(found) < count:
                connection.drain_events(timeout=20)
            return found

        with consumer:
            yield drain


def publish(connection: Connection, body: object, **options: Any) -> None:
    with connection.channel() as channel:
        Producer(channel).publish(body, **options)


def drains_nothing(connection: Connection, seconds: float = 0.1) -> bool:
    try:
        connection.drain_events(timeout=seconds)
    except TimeoutError:
        return True
    return False


def test_a_message_keeps_its_body_headers_and_properties(connection: Connection) -> None:
    queue = Queue("mail")
    at = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    with consuming(connection, queue) as drain:
        publish(
            connection,
            {"to": "Ada", "text": "çé🎉"},
            routing_key="mail",
            headers={"at": at, "n": 1},
            correlation_id="c1",
            reply_to="r1",
        )
        (message,) = drain(1)
        assert message.payload == {"to": "Ada", "text": "çé🎉"}
        assert message.headers == {"at": at, "n": 1}
        assert message.properties["correlation_id"] == "c1"
        assert message.properties["reply_to"] == "r1"
        assert message.delivery_info["routing_key"] == "mail"
        message.ack()


@pytest.mark.parametrize("body", [b"\x00\xff\xfe", b"", "text", ""])
def test_raw_bodies_travel_as_they_are(connection: Connection, body: bytes | str) -> None:
    kind = "application/data" if isinstance(body, bytes) else "text/plain"
    code = "binary" if isinstance(body, bytes) else "utf-8"
    with consuming(connection, Queue("raw"), no_ack=True) as drain:
        publish(connection, body, routing_key="raw", content_type=kind, content_encoding=code)
        (message,) = drain(1)
    assert message.body == (body if isinstance(body, bytes) else body.encode())


def test_what_is_acknowledged_is_gone(connection: Connection, client: nexo.Client) -> None:
    with consuming(connection, Queue("done")) as drain:
        publish(connection, 1, routing_key="done")
        drain(1)[0].ack()
    info = client.queue("done").info()
    assert (info.waiting, info.working, info.finished_total) == (0, 0, 1)


def test_what_is_not_acknowledged_comes_again(connection: Connection) -> None:
    queue = Queue("held")
    publish(connection, "mine", routing_key="held", declare=[queue])
    with consuming(connection, queue) as drain:
        drain(1)
    with consuming(connection, queue) as drain:
        assert drain(1)[0].payload == "mine"


def test_a_requeued_message_keeps_its_place(connection: Connection) -> None:
    queue = Queue("again")
    with consuming(connection, queue, prefetch=1) as drain:
        for n in range(3):
            publish(connection, n, routing_key="again")
        drain(1)[0].requeue()
        found = drain(2)
        assert found[1].payload == 0
        found[1].ack()
        assert drain(3)[2].payload == 1


def test_a_rejected_message_is_a_dead_letter(connection: Connection, client: nexo.Client) -> None:
    with consuming(connection, Queue("bad")) as drain:
        publish(connection, "spoilt", routing_key="bad")
        drain(1)[0].reject()
    (letter,) = client.queue("bad").dlq.peek()
    assert (letter.value, letter.cause) == ("spoilt", "rejected")


def test_several_are_acknowledged_at_once(connection: Connection, client: nexo.Client) -> None:
    with consuming(connection, Queue("many")) as drain:
        for n in range(5):
            publish(connection, n, routing_key="many")
        drain(5)[3].ack(multiple=True)
    assert client.queue("many").info().finished_total == 4


def test_no_more_than_the_prefetch_count_is_held(connection: Connection) -> None:
    with consuming(connection, Queue("few"), prefetch=2) as drain:
        for n in range(5):
            publish(connection, n, routing_key="few")
        found = drain(2)
        assert drains_nothing(connection)
        found[0].ack()
        assert [message.payload for message in drain(3)] == [0, 1, 2]


def test_the_prefetch_count_is_one_for_all_queues_of_a_channel(connection: Connection) -> None:
    queues = [Queue(f"part{n}") for n in range(3)]
    with consuming(connection, *queues, prefetch=1) as drain:
        for queue in queues:
            publish(connection, queue.name, routing_key=queue.name)
        names = set()
        for n in range(3):
            message = drain(n + 1)[n]
            assert drains_nothing(connection, 0.05)
            names.add(message.payload)
            message.ack()
    assert names == {"part0", "part1", "part2"}


def test_the_highest_priority_comes_first(connection: Connection) -> None:
    queue = Queue("ranked")
    for priority in (0, 9, 3):
        publish(connection, priority, routing_key="ranked", priority=priority, declare=[queue])
    with consuming(connection, queue, no_ack=True) as drain:
        assert [message.payload for message in drain(3)] == [9, 3, 0]


def test_a_message_outlives_neither_its_own_ttl_nor_the_queues(
    connection: Connection, client: nexo.Client
) -> None:
    short, long = Queue("short", message_ttl=0.01), Queue("long")
    publish(connection, 1, routing_key="short", declare=[short])
    publish(connection, 2, routing_key="long", expiration=0.01, declare=[long])
    publish(connection, 3, routing_key="long", declare=[long])
    for name, left in (("short", 0), ("long", 1)):
        queue = client.queue(name)
        wait_until(lambda queue=queue, left=left: queue.info().waiting == left)  # type: ignore[misc]


def test_a_direct_exchange_routes_by_its_key(connection: Connection) -> None:
    exchange = Exchange("orders", "direct")
    paid, sent = (Queue(key, exchange, routing_key=key) for key in ("paid", "sent"))
    with (
        consuming(connection, paid, no_ack=True) as of_paid,
        consuming(connection, sent, no_ack=True) as of_sent,
    ):
        for key in ("sent", "paid", "lost"):
            publish(connection, key, exchange=exchange, routing_key=key)
        assert [message.payload for message in of_sent(1)] == ["sent"]
        assert [message.payload for message in of_paid(1)] == ["paid"]


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        ("a.*", {"a.b"}),
        ("a.#", {"a", "a.b", "a.b.c"}),
        ("#.c", {"a.b.c", "c"}),
        ("#", {"a", "a.b", "a.b.c", "c"}),
        ("a.b", {"a.b"}),
    ],
)
@pytest.mark.parametrize("kept", [True, False])
def test_a_topic_exchange_routes_by_words(
    connection: Connection, bound: str, expected: set[str], kept: bool
) -> None:
    exchange = Exchange("logs", "topic")
    queue = Queue("found", exchange, bound, exclusive=not kept, durable=kept)
    with consuming(connection, queue, no_ack=True) as drain:
        for key in ("a", "a.b", "a.b.c", "c"):
            publish(connection, key, exchange=exchange, routing_key=key)
        assert {message.payload for message in drain(len(expected))} == expected
        assert drains_nothing(connection, 0.05)


def test_a_fanout_exchange_reaches_every_queue(connection: Connection, url: str) -> None:
    """Kept queues, and those that live with their consumer, of other connections too."""
    exchange = Exchange("news", "fanout")
    kept, passing = Queue("archive", exchange), Broadcast("news")
    with (
        Connection(url) as other,
        consuming(connection, kept, no_ack=True) as archived,
        consuming(other, passing, no_ack=True) as heard,
    ):
        publish(connection, "extra!", exchange=exchange)
        assert archived(1)[0].payload == heard(1)[0].payload == "extra!"


def test_a_queue_for_replies_leaves_nothing_behind(
    connection: Connection, client: nexo.Client, url: str
) -> None:
    queue = Queue("reply-1", exclusive=True, durable=False)
    with consuming(connection, queue, no_ack=True) as drain:
        with Connection(url) as other:
            publish(other, "yes", routing_key="reply-1", delivery_mode="transient")
        assert drain(1)[0].payload == "yes"
    publish(connection, "too late", routing_key="nobody", delivery_mode="transient")
    assert client.queues() == []


def test_a_queue_that_deletes_itself_ends_with_its_consumer(
    connection: Connection, client: nexo.Client
) -> None:
    """Each `inspect` makes one in its thread: they would gather, with two threads each."""
    queue = Queue("reply-2", auto_delete=True, expires=60, durable=False)
    for text in ("first", "again"):
        with consuming(connection, queue, no_ack=True) as drain:
            publish(connection, text, routing_key="reply-2", delivery_mode="transient")
            assert drain(1)[0].payload == text
        assert connection.transport.mailboxes == {}
    assert not [each.name for each in threading.enumerate() if "reply-2" in each.name]
    assert client.queues() == []


def test_bindings_survive_a_restart_of_the_server(
    nexo_server: testing.Server,
) -> None:
    exchange = Exchange("bound", "topic")
    queue = Queue("kept", exchange, "a.#")
    with Connection(nexo_server.url) as connection:
        queue(connection.default_channel).declare()
    nexo_server.crash()
    nexo_server.start()
    with Connection(nexo_server.url) as connection:
        publish(connection, "after", exchange=exchange, routing_key="a.b")
        with consuming(connection, queue) as drain:
            assert drain(1)[0].payload == "after"


def test_deleting_a_queue_takes_its_bindings_along(
    connection: Connection, client: nexo.Client
) -> None:
    queue = Queue("gone", Exchange("ex"), "key")
    bound = queue(connection.default_channel)
    bound.declare()
    bound.delete()
    assert not client.queue("gone").exists()
    assert client.pubsub.retained("kombu/#") == []
    with pytest.raises(ChannelError):
        bound.queue_declare(passive=True)


def test_an_unbound_queue_gets_nothing(connection: Connection, client: nexo.Client) -> None:
    exchange = Exchange("ex")
    queue = Queue("loose", exchange, "key")(connection.default_channel)
    queue.declare()
    queue.unbind_from(exchange, "key")
    publish(connection, 1, exchange=exchange, routing_key="key")
    assert client.queue("loose").info().waiting == 0


def test_get_size_and_purge(connection: Connection) -> None:
    queue = Queue("plain")(connection.default_channel)
    queue.declare()
    for n in range(3):
        publish(connection, n, routing_key="plain")
    assert queue.queue_declare(passive=True).message_count == 3
    message = queue.get()
    assert message.payload == 0
    message.ack()
    assert queue.purge() == 2
    assert queue.get() is None


@pytest.mark.parametrize("name", ["celery@höst.pidbox", "a b", "x/../y", "q:x", "émile"])
def test_any_queue_name_works(connection: Connection, client: nexo.Client, name: str) -> None:
    with consuming(connection, Queue(name), no_ack=True) as drain:
        publish(connection, name, routing_key=name)
        assert drain(1)[0].payload == name
    assert client.queue(name_of(name)).exists()


def test_a_prefix_keeps_apps_apart(url: str, client: nexo.Client) -> None:
    with Connection(url, transport_options={"prefix": "shop:"}) as mine, Connection(url) as other:
        publish(mine, 1, routing_key="tasks", declare=[Queue("tasks")])
        with consuming(other, Queue("tasks")):
            assert drains_nothing(other, 0.05)
    assert client.queue("shop:tasks").info().waiting == 1


def test_options_are_those_of_queues_created_here(url: str, client: nexo.Client) -> None:
    client.queue("old").create(max_retries=1)
    options = {"max_retries": 7, "visibility_timeout": 5}
    with Connection(url, transport_options=options) as connection:
        for name in ("old", "new"):
            publish(connection, 1, routing_key=name, declare=[Queue(name)])
    new = client.queue("new").info().options
    assert (new["max_retries"], new["visibility_timeout_ms"]) == (7, 5_000)
    assert client.queue("old").info().options["max_retries"] == 1


def test_leases_are_renewed_while_messages_are_held(url: str, client: nexo.Client) -> None:
    queue, options = Queue("slow"), {"visibility_timeout": 0.8}
    with (
        Connection(url, transport_options=options) as connection,
        consuming(connection, queue) as drain,
    ):
        publish(connection, 1, routing_key="slow")
        (message,) = drain(1)
        assert drains_nothing(connection, 1.8)
        message.ack()
    assert client.queue("slow").info().finished_total == 1


def test_a_publish_that_is_repeated_is_stored_once(
    connection: Connection, client: nexo.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply was lost with the connection: kombu publishes again."""
    transport_class = type(connection.transport)
    push, cuts = transport_class.push, iter([True, False])

    def push_and_cut(self: Any, queue: str, sent: Any) -> None:
        push(self, queue, sent)
        if next(cuts):
            raise ConnectionLost("cut before the reply")

    monkeypatch.setattr(transport_class, "push", push_and_cut)
    publish(connection, 1, routing_key="once", declare=[Queue("once")], retry=True)
    assert client.queue("once").info().waiting == 1


def test_a_lost_connection_is_reported_to_who_drains_events(nexo_server: testing.Server) -> None:
    with Connection(nexo_server.url) as connection:
        with consuming(connection, Queue("cut")):
            nexo_server.crash()
            with pytest.raises(connection.connection_errors):
                connection.drain_events(timeout=20)
        nexo_server.start()


def test_a_publish_outlasts_a_planned_restart(nexo_server: testing.Server) -> None:
    """However long it takes: kombu's own retries have ended before the server is back."""
    policy = {"max_retries": 1, "interval_start": 0, "interval_max": 0}
    with Connection(nexo_server.url) as connection, nexo.connect(nexo_server.url) as client:
        publish(connection, 1, routing_key="q", declare=[Queue("q")])
        nexo_server.stop()
        with ThreadPoolExecutor(1) as thread:
            with socket.create_server(("127.0.0.1", nexo_server.port)) as nobody:
                nobody.settimeout(20)
                options = {"routing_key": "q", "retry": True, "retry_policy": policy}
                publishing = thread.submit(publish, connection, 2, **options)
                for _ in range(5):
                    nobody.accept()[0].close()
            nexo_server.start()
            publishing.result()
        assert client.queue("q").info().waiting == 2


def test_the_next_server_is_tried_when_one_is_down(url: str) -> None:
    with Connection(f"nexo://127.0.0.1:1;{url}") as connection:
        connection.ensure_connection(max_retries=3, interval_start=0)
        publish(connection, 1, routing_key="q", declare=[Queue("q")])
        assert connection.port == int(url.rpartition(":")[2])


def test_no_server_is_an_operational_error() -> None:
    with Connection("nexo://127.0.0.1:1") as connection, pytest.raises(OperationalError):
        connection.ensure_connection(max_retries=1, interval_start=0)


def test_the_password_is_not_shown() -> None:
    connection = Connection("nexo://user:secret@127.0.0.1:1")
    assert "secret" not in connection.as_uri()


def test_an_eta_without_a_time_zone_is_left_to_the_worker() -> None:
    from nexo.integrations.celery.messages import delay_ms  # noqa: PLC0415

    later = datetime.now(UTC) + timedelta(hours=1)
    assert 3_590_000 < delay_ms({"eta": later.isoformat()}) <= 3_600_000
    assert delay_ms({"eta": later.replace(tzinfo=None).isoformat()}) == 0
    assert delay_ms({"eta": "nonsense"}) == delay_ms({}) == 0
    assert delay_ms({"eta": (later - timedelta(days=1)).isoformat()}) == 0


def test_celery_finds_the_urls_by_entry_points(url: str, tmp_path: Path) -> None:
    """Nothing of ours is imported by hand."""
    points = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["entry-points"]
    info = tmp_path / "found_by_name-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: found-by-name\nVersion: 1\n")
    lines = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in found.items())
        for group, found in points.items()
        if group.startswith(("kombu", "celery"))
    )
    (info / "entry_points.txt").write_text("".join(lines))
    program = (
        "import celery, sys\n"
        "app = celery.Celery(broker=sys.argv[1], backend=sys.argv[1])\n"
        "app.send_task('t', (1,), serializer='nexo')\n"
        "print(type(app.backend).__name__)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    found = subprocess.run(
        [sys.executable, "-c", program, url],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.stdout, found.returncode) == ("CeleryResultBackend\n", 0), found.stderr
    with nexo.connect(url) as client:
        assert client.queue("celery").info().waiting == 1
