"""Every request of pub/sub against permissions, where its use case asks for them (SPEC A10)."""

from __future__ import annotations

import msgspec
import pytest

from nexo.access.grants import Action, Grant
from nexo.access.login import Identity
from nexo.access.users import User
from nexo.errors import Forbidden
from nexo.model import Broker
from nexo.protocol.messages import pack
from nexo.protocol.ops import BROKER_OF, Op
from nexo.protocol.pubsub import Listing, message_frame, parse_with_refused
from tests.unit.access.samples import NAME, REQUESTS
from tests.unit.brokers.pubsub.desk import Connection, Desk

OPS = sorted(op for op in Op if BROKER_OF[op] is Broker.PUBSUB)
WRITES = {Op.PUB, Op.PUBLISH_RUN, Op.PUBLISH, Op.WILL}
LISTS = [Op.PS_RETAINED, Op.PS_TOPICS, Op.PS_SUBSCRIPTIONS]


def client(desk: Desk, *grants: Grant) -> Connection:
    made = desk.client()
    made.identity = Identity(User("ana", grants=grants), None)
    return made


def ask(op: Op, *grants: Grant) -> object:
    return client(Desk(), *grants).ask(op, REQUESTS[op])


def allowed(op: Op) -> set[Action]:
    if op == Op.PS_SUBSCRIPTIONS:
        return {Action.READ, Action.ADMIN}
    return {Action.WRITE} if op in WRITES else {Action.READ}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_each_request_takes_its_own_action(op: Op) -> None:
    for action in Action:
        if action in allowed(op):
            ask(op, Grant("pubsub", action))
        else:
            with pytest.raises(Forbidden):
                ask(op, Grant("pubsub", action))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_permission_for_another_broker_or_topic_is_none(op: Op) -> None:
    for grants in ((), (Grant("queue"),), (Grant("pubsub", pattern="another"),)):
        if grants and grants[0].broker == "pubsub" and op == Op.PS_SUBSCRIPTIONS:
            continue  # it shows what the user may see
        with pytest.raises(Forbidden, match="user 'ana' may not"):
            ask(op, *grants)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_permission_for_the_very_topic_is_enough(op: Op) -> None:
    ask(op, Grant("pubsub", pattern=NAME))


def test_of_a_run_what_is_permitted_is_published_and_the_rest_named() -> None:
    desk = Desk()
    listener = desk.client()
    listener.subscribe("#")
    topics = ["mine/1", "other", "mine/2", "other"]
    run = b"".join(message_frame(topic.encode(), b"\0x", 1) for topic in topics)
    reply = client(desk, Grant("pubsub", pattern="mine/+")).ask(Op.PUBLISH_RUN, run)
    assert isinstance(reply, bytes)
    assert parse_with_refused(reply, 4) == ((1, 0, 1, 0), (1, 3))
    assert listener.received == [("mine/1", b"x"), ("mine/2", b"x")]


@pytest.mark.parametrize("op", LISTS, ids=lambda op: op.name)
def test_a_list_shows_what_the_user_may_see_and_nothing_else(op: Op) -> None:
    desk = Desk()
    owner = desk.client()
    for topic in ("mine/1", "mine/2", "other", "mine"):
        owner.subscribe(topic)
        owner.publish(topic, b"x", retain=True)

    def listed(*grants: Grant) -> set[str]:
        reply = client(desk, *grants).ask(op, pack(Listing("#")))
        assert isinstance(reply, bytes)
        return {row.get("topic", row.get("pattern")) for row in msgspec.msgpack.decode(reply)}

    assert listed(Grant("pubsub", "read", "mine/+")) == {"mine/1", "mine/2"}
    assert listed(Grant("pubsub", "read", "nothing/there")) == set()
    assert listed(Grant("pubsub", "read")) == {"mine/1", "mine/2", "other", "mine"}
    with pytest.raises(Forbidden):
        listed()


@pytest.mark.parametrize("op", [Op.PS_RETAINED, Op.PS_TOPICS], ids=lambda op: op.name)
def test_a_list_of_one_forbidden_topic_is_refused(op: Op) -> None:
    with pytest.raises(Forbidden, match="topic 'secret'"):
        client(Desk(), Grant("pubsub", pattern="mine/#")).ask(op, pack(Listing("secret")))
