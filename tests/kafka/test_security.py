"""SASL with our users, permissions with Kafka's errors, a port of its own (SPEC L2, L4)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

import nexo
import nexo.testing
from nexo.access.grants import parse_grant
from nexo.access.users import UsersFile
from nexo.testing import free_port
from tests.kafka.ledger import shows
from tests.kafka.test_frames import answer, request
from tests.timing import wait_until

pytestmark = shows("confluent-kafka", "SASL PLAIN, SCRAM, tokens, permissions")
PASSWORD = "correct-horse"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, UsersFile]]:
    folder: Path = tmp_path_factory.mktemp("kafka")
    users = UsersFile(folder / "users.json")
    users.add("root", PASSWORD, [parse_grant("*:*:*")])
    users.add("eve", PASSWORD, [])
    users.add("ana", PASSWORD, [parse_grant("stream:*:mine*")])
    with nexo.testing.server(data_dir=folder / "nexo", auth=True, users_file=users.path) as url:
        yield url.removeprefix("nexo://"), users


SCRAM = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


def options(
    bootstrap: str, user: str, password: str = PASSWORD, mechanism: str = "PLAIN"
) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


def sent(topic: str, given: dict[str, Any]) -> int:
    """The error of one message, 0 for none."""
    errors: list[int] = []
    producer = Producer({**given, "message.timeout.ms": 4_000})

    def delivered(error: KafkaError | None, _: object) -> None:
        errors.append(0 if error is None else int(error.code()))

    producer.produce(topic, b"v", on_delivery=delivered)
    producer.flush(20)
    return errors[0]


def test_users_log_in_and_write_where_they_may(guarded: tuple[str, UsersFile]) -> None:
    bootstrap, users = guarded
    assert sent("mine-a", options(bootstrap, "ana")) == 0
    token = users.add_token("ana", "kafka")
    assert sent("mine-a", options(bootstrap, "token", token)) == 0
    assert sent("theirs", options(bootstrap, "root")) == 0
    assert sent("theirs", options(bootstrap, "ana")) == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram_proves_a_password(guarded: tuple[str, UsersFile], mechanism: str) -> None:
    given = options(guarded[0], "ana", mechanism=mechanism)
    assert sent("mine-a", given) == 0
    assert sent("theirs", given) == KafkaError.TOPIC_AUTHORIZATION_FAILED


@shows("aiokafka", "SASL SCRAM")
async def test_scram_with_another_client(guarded: tuple[str, UsersFile]) -> None:
    """It checks what the server proves in turn, too."""
    producer = AIOKafkaProducer(
        bootstrap_servers=guarded[0],
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=SCRAM[1],
        sasl_plain_username="ana",
        sasl_plain_password=PASSWORD,
    )
    async with producer:
        await producer.send_and_wait("mine-b", b"v")


@pytest.mark.parametrize(
    ("mechanism", "user"), [("PLAIN", "eve"), (SCRAM[0], "eve"), (SCRAM[1], "nobody")]
)
def test_a_wrong_password_is_refused(
    guarded: tuple[str, UsersFile], mechanism: str, user: str
) -> None:
    problems: list[int] = []
    given = options(guarded[0], user, "wrong", mechanism)
    once = {"reconnect.backoff.ms": 10_000}
    producer = Producer({**given, **once, "error_cb": lambda error: problems.append(error.code())})
    wait_until(lambda: producer.poll(0) > 0 or bool(problems))
    assert problems[0] == KafkaError._AUTHENTICATION


def test_topics_and_groups_are_shown_to_those_who_may_see_them(
    guarded: tuple[str, UsersFile],
) -> None:
    bootstrap, _ = guarded
    assert sent("theirs", options(bootstrap, "root")) == 0
    admin = AdminClient(options(bootstrap, "ana"))
    assert "theirs" not in admin.list_topics(timeout=20).topics
    consumer = Consumer({**options(bootstrap, "ana"), "group.id": "g"})
    consumer.subscribe(["theirs"])
    message = consumer.poll(20)
    assert message is not None
    assert message.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()


def test_nothing_is_served_and_little_is_read_before_a_login(
    guarded: tuple[str, UsersFile],
) -> None:
    bootstrap, _ = guarded
    assert answer(bootstrap, request(3, 0, bytes(4))) == b""
    assert answer(bootstrap, request(18, 0, b""))[8:10] == b"\x00\x00"
    assert answer(bootstrap, request(18, 0, bytes(20_000))) == b""


def test_kafka_has_a_port_of_its_own_and_an_advertised_address(tmp_path: Path) -> None:
    port = free_port()
    with nexo.testing.server(kafka_port=port, kafka_advertised=f"localhost:{port}"):
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        (broker,) = admin.list_topics(timeout=20).brokers.values()
        assert (broker.host, broker.port) == ("localhost", port)
