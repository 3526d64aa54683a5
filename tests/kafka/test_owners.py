"""Transactional ids and groups belong to whom the grants say (SPEC A10, L4)."""

from __future__ import annotations

import pytest

from nexo.access.grants import parse_grant
from nexo.access.users import User
from nexo.dialects.kafka.format.apis import ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error
from tests.kafka.session import Door, Line
from tests.kafka.transactional import NOBODY, TransactionalClient
from tests.unit.brokers.stream.desk import Desk


def user(name: str, *grants: str) -> User:
    return User(name, grants=tuple(map(parse_grant, grants)))


ANA, BEN = user("ana", "stream:*:a*"), user("ben", "stream:*:b*")
FORBIDDEN = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


@pytest.fixture
def desk() -> Desk:
    return Desk()


def producer(desk: Desk, door: Door, who: User, topic: str) -> TransactionalClient:
    made = TransactionalClient(Line(door, who).ask, desk.after, topic)
    made.name = "tx"
    return made


def test_nothing_is_rolled_back_for_a_user_whose_id_it_is_not(desk: Desk) -> None:
    door = Door(desk)
    ana, ben = producer(desk, door, ANA, "a"), producer(desk, door, BEN, "b")
    _, mine = ana.init()
    assert (ana.add_partitions(mine), ana.produce(mine)) == ("NONE", "NONE")
    assert ben.init() == (FORBIDDEN, NOBODY)
    assert ben.end(mine) == "INVALID_PRODUCER_ID_MAPPING"
    assert ana.end(mine) == "NONE"
    assert desk.client().read("a") == [b"v"]


@pytest.mark.parametrize("orderly", [True, False])
def test_whose_an_id_is_survives_a_restart(desk: Desk, *, orderly: bool) -> None:
    _, (mine, _) = producer(desk, Door(desk), ANA, "a").init()
    again = desk.restart() if orderly else desk.crash()
    door = Door(again)
    assert producer(again, door, BEN, "b").init() == (FORBIDDEN, NOBODY)
    assert producer(again, door, ANA, "a").init() == ("NONE", (mine, 1))


@pytest.mark.parametrize("grant", ["stream:write:*@kafka/tx", "stream:*:*"])
def test_a_grant_for_the_id_or_for_everything_lets_another_user_take_it(
    desk: Desk, grant: str
) -> None:
    door = Door(desk)
    _, (mine, epoch) = producer(desk, door, ANA, "a").init()
    cleo = user("cleo", "stream:*:c*", grant)
    assert producer(desk, door, cleo, "c").init() == ("NONE", (mine, epoch + 1))
    assert producer(desk, door, ANA, "a").init() == ("NONE", (mine, epoch + 2))


def subscription(*topics: str) -> bytes:
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\x00\x00" + len(topics).to_bytes(4, "big") + names + bytes(4)


def join(line: Line, group: str, metadata: bytes, kind: str = "consumer") -> KafkaMessage:
    ask: KafkaMessage = {
        "group": group, "session_ms": 30_000, "rebalance_ms": 30_000, "member": "",
        "protocol_type": kind, "protocols": [{"name": "range", "metadata": metadata}],
    }  # fmt: skip
    found = line.ask(ApiKey.JOIN_GROUP, 5, ask)
    if found["error"] == Error.MEMBER_ID_REQUIRED:
        found = line.ask(ApiKey.JOIN_GROUP, 5, ask | {"member": found["member"]})
    return found


def test_a_member_names_only_topics_that_its_user_may_read(desk: Desk) -> None:
    line = Line(desk, ANA)
    refused = join(line, "g", subscription("a", "b"))
    assert refused["error"] == Error.GROUP_AUTHORIZATION_FAILED
    assert join(line, "g", subscription("a", "a2"))["error"] == 0


def test_a_group_is_used_by_those_who_may_read_all_that_it_reads(desk: Desk) -> None:
    door = Door(desk)
    joined = join(Line(door, ANA), "g", subscription("a"))
    beat = {"group": "g", "generation": joined["generation"], "member": joined["member"]}
    beats = [
        Line(door, who).ask(ApiKey.HEARTBEAT, 4, beat | {"instance": None})["error"]
        for who in (ANA, BEN, user("all", "stream:read:*"))
    ]
    assert beats == [0, Error.UNKNOWN_MEMBER_ID, 0]


@pytest.mark.parametrize("kind", ["connect", "consumer"])
def test_a_group_whose_members_name_no_topics_is_its_users(desk: Desk, kind: str) -> None:
    """So are those of Kafka Connect."""
    door = Door(desk)
    assert join(Line(door, ANA), "g", b"", kind)["error"] == 0
    refused = join(Line(door, BEN), "g", b"", kind)
    assert refused["error"] == Error.GROUP_AUTHORIZATION_FAILED
    ask: KafkaMessage = {"groups": ["g"]}
    shown = [Line(door, who).ask(ApiKey.DESCRIBE_GROUPS, 4, ask) for who in (ANA, BEN)]
    assert [found["groups"][0]["state"] for found in shown] == ["CompletingRebalance", "Dead"]
