"""A user learns of, and changes, only what the grants say, at every request.

Requests are generated from the list of APIs and their versions (SPEC A10, L4). Each names things of
another user: once where they exist, once where they do not.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from nexo.access.grants import parse_grant
from nexo.access.users import User
from nexo.dialects.kafka.format.apis import APIS, Api, ApiKey
from nexo.dialects.kafka.format.codec import Field, KafkaMessage
from nexo.dialects.kafka.format.errors import Error
from tests.kafka.session import Door, Line
from tests.kafka.transactional import Producer, TransactionalClient, batch_of
from tests.unit.brokers.stream.desk import Desk

TOPIC, NAME, MEMBER = "billing-events", "billing", "billing-member"
LOW = User("low", grants=(parse_grant("stream:*:low*"),))
NOBODY = User("nobody")
OWNER = User("owner", grants=(parse_grant("stream:*:billing*"),))
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x0ebilling-events\x00\x00\x00\x00"
CLAIMS = {
    ApiKey.JOIN_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.INIT_PRODUCER_ID,
    ApiKey.OFFSET_COMMIT,
}  # fmt: skip
"""These take a name that nobody has; one that is taken is refused, which cannot be hidden."""
LOGIN = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}


class World:
    """A broker on which another user has a topic, groups, and a transaction half done."""

    def __init__(self, *, inhabited: bool) -> None:
        self.desk = Desk()
        self.desk.service.core.engine.cluster_id = "the same"  # so that answers can be compared
        self.door = Door(self.desk)
        self.topic_id = UUID(int=1)
        self.producer: Producer = (1, 0)
        self.member = MEMBER
        if inhabited:
            self._settle()

    def _settle(self) -> None:
        mine = Line(self.door, OWNER)
        client = TransactionalClient(mine.ask, self.desk.after, TOPIC)
        client.name, client.group = NAME, NAME
        error, self.producer = client.init(timeout_ms=900_000)
        assert (error, client.add_partitions(self.producer)) == ("NONE", "NONE")
        assert client.produce(self.producer) == "NONE"
        topics = mine.ask(ApiKey.METADATA, 12, {"topics": [{"id": UUID(int=0), "name": TOPIC}]})
        self.topic_id = topics["topics"][0]["id"]
        joined = self._join(mine, NAME)
        self.member = joined["member"]
        commit = {
            "group": NAME, "member": self.member, "generation": joined["generation"],
            "topics": [{"name": TOPIC, "partitions": [{"partition": 0, "offset": 0}]}],
        }  # fmt: skip
        mine.ask(ApiKey.SYNC_GROUP, 5, commit | {"assignments": []})
        stored = mine.ask(ApiKey.OFFSET_COMMIT, 8, commit)
        assert stored["topics"][0]["partitions"][0]["error"] == 0
        beat = {"group": f"{NAME}-new", "member": MEMBER, "epoch": 0, "rebalance_ms": 60_000}
        asked = beat | {"topics": [TOPIC], "owned": [], "assignor": None, "instance": None}
        assert mine.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, asked)["error"] == 0

    def _join(self, line: Line, group: str) -> KafkaMessage:
        ask = {
            "group": group, "session_ms": 30_000, "rebalance_ms": 30_000, "member": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        }  # fmt: skip
        member = line.ask(ApiKey.JOIN_GROUP, 9, ask)["member"]
        return line.ask(ApiKey.JOIN_GROUP, 9, ask | {"member": member})

    def state(self) -> tuple[object, ...]:
        """All that the broker would restore, the members of groups, and open transactions."""
        service = self.desk.service
        taken = msgspec.to_builtins(service.core.engine.snapshot(synced=True), str_keys=True)
        classic = {
            name: (group.state, group.generation, [*group.members])
            for name, group in service.classic.live()
        }
        transactions = service.core.engine.transactions
        return taken, classic, [*transactions.deadlines()], transactions.next_id

    def ask(self, user: User, key: ApiKey, version: int, asked: KafkaMessage) -> KafkaMessage:
        return Line(self.door, user).ask(key, version, asked)

    def request(self, api: Api, version: int, *, group: str = NAME, plain: bool) -> KafkaMessage:
        """A request that names what is in this world; as a member and producer or as none."""
        names: dict[str, Any] = {
            "transactional_id": NAME, "topics": TOPIC, "groups": group, "group": group,
            "member": "" if plain else self.member, "producer_id": self.producer[0],
            "epoch": self.producer[1], "id": self.topic_id, "key": NAME, "keys": NAME,
            "records": batch_of(self.producer, 1), "partitions": 0, "metadata": SUBSCRIPTION,
            "protocol_type": "consumer", "timeout_ms": 60_000, "session_ms": 30_000,
            "rebalance_ms": 30_000, "generation": -1 if plain else 1, "acks": -1, "count": 9,
            "max_bytes": 1_000_000, "type": 2, "timestamp": -2, "offset": 0, "instance": None,
            "committed": 1, "configs": "retention.ms", "value": "1", "broker": 0,
            "ids": NAME, "limit": 100, "cursor": None, "producer_ids": self.producer[0],
            "duration_ms": -1, "session_epoch": -1, "mechanism": "PLAIN", "states": "Stable",
            "types": "classic", "kinds": 2,
        }  # fmt: skip
        if api.key is ApiKey.INIT_PRODUCER_ID and plain:
            names |= {"producer_id": -1, "epoch": -1}
        if api.key is ApiKey.CONSUMER_GROUP_HEARTBEAT:
            names |= {"epoch": 0 if plain else 1, "member": MEMBER, "assignor": None, "regex": None}
        if api.key is ApiKey.LIST_TRANSACTIONS:
            names["states"] = "Ongoing"
        if api.key is ApiKey.DESCRIBE_CONFIGS:
            names["keys"] = "retention.ms"
        return {f.name: _filled(f, version, names) for f in api.request.fields}


def _filled(field: Field, version: int, names: dict[str, Any]) -> Any:
    if not field.low <= version <= field.high:
        return field.default
    found: Any
    if field.fields:
        found = {inner.name: _filled(inner, version, names) for inner in field.fields}
        if "name" in found:
            found["name"] = TOPIC if field.name in ("topics", "resources", "forgotten") else "range"
        if field.name == "configs":
            found["name"] = "retention.ms"
    else:
        found = names.get(field.name, field.default)
        if field.kind == "str" and isinstance(found, bytes):
            found = ""
        if field.is_array and isinstance(found, list):
            return found
    return [found] if field.is_array else found


CASES = [
    pytest.param(api, version, id=f"{api.key.name}-{version}")
    for api in APIS.values()
    for version in range(api.low, api.high + 1)
    if api.key not in LOGIN
]


def _secrets(world: World) -> list[str]:
    return [TOPIC, world.member, MEMBER, str(world.topic_id), f"{NAME}-new"]


def _told(asked: object, answer: object) -> str:
    """What an answer says; texts of the request are known to who asked."""
    text = repr(answer)
    for known in sorted(_texts(asked), key=lambda text: -len(str(text))):
        text = text.replace(str(known), "")
    return text


def _texts(message: object) -> set[object]:
    if isinstance(message, dict):
        return set().union(*map(_texts, message.values()))
    if isinstance(message, list):
        return set().union(*map(_texts, message))
    return {message} if isinstance(message, str | UUID) and message else set()


@pytest.fixture(scope="module")
def worlds() -> tuple[World, World]:
    return World(inhabited=True), World(inhabited=False)


@pytest.mark.parametrize("user", [LOW, NOBODY], ids=lambda user: user.name)
@pytest.mark.parametrize(("api", "version"), CASES)
def test_a_stranger_learns_nothing_and_changes_nothing(
    api: Api, version: int, user: User, worlds: tuple[World, World]
) -> None:
    world, empty = worlds
    before = world.state()
    for plain in (False, True):
        for group in (NAME, f"{NAME}-new"):
            asked = world.request(api, version, group=group, plain=plain)
            answer = world.ask(user, api.key, version, asked)
            assert world.state() == before
            told = _told(asked, answer)
            assert not [secret for secret in _secrets(world) if secret in told]
            if user is NOBODY or api.key not in CLAIMS:
                assert answer == empty.ask(user, api.key, version, asked)


@pytest.mark.parametrize(
    ("api", "version"), [case for case in CASES if "DELETE_GROUPS" not in str(case.id)]
)
def test_the_requests_do_something_for_their_owner(api: Api, version: int) -> None:
    """Otherwise the test above shows nothing: a refusal is for the lack of a grant.

    To delete a group needs a grant for everything, which the owner has not.
    """
    forbidden = {
        Error.TOPIC_AUTHORIZATION_FAILED, Error.GROUP_AUTHORIZATION_FAILED,
        Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Error.UNKNOWN_TOPIC_ID,
        Error.INVALID_PRODUCER_ID_MAPPING,
    }  # fmt: skip
    world = World(inhabited=True)
    asked = world.request(api, version, plain=False)
    assert not _errors(world.ask(OWNER, api.key, version, asked)) & forbidden


def _errors(found: object) -> set[int]:
    if isinstance(found, dict):
        mine = {found["error"]} if "error" in found else set()
        return mine.union(*(_errors(value) for value in found.values()))
    return set().union(*map(_errors, found)) if isinstance(found, list) else set()
