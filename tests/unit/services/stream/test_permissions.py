"""Each use case asks whether its user may (SPEC A10)."""

from __future__ import annotations

import pytest

from nexo.access.grants import Action, Grant
from nexo.access.login import Identity
from nexo.access.users import User
from nexo.errors import Forbidden, NexoError, TransactionAborted
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import KeyAt, TxBegin, TxInputs, publish_head
from tests.unit.access.samples import NAME, REQUESTS
from tests.unit.brokers.stream.desk import Desk, Peer

READ, WRITE, ADMIN = Action.READ, Action.WRITE, Action.ADMIN
NEEDS = {
    Op.S_PUBLISH: {WRITE},
    Op.S_PUBLISH_EACH: {WRITE},
    Op.S_ADD: {WRITE},
    Op.S_PRODUCER: {WRITE},
    Op.S_GROUPS: {READ},
    Op.S_GROUP_DELETE: {ADMIN},
    Op.S_MAKE: {ADMIN},
    Op.S_DESCRIBE: set(Action),
    Op.S_UPDATE: {ADMIN},
    Op.S_LIST: set(Action),
    Op.S_SURVEY: {READ, ADMIN},
    Op.S_TIERED: {ADMIN},
    Op.S_RETAIN: {ADMIN},
    Op.S_TX_INPUTS: {READ},
    Op.S_COMPACT: {ADMIN},
    Op.S_GET: {READ},
    Op.S_STATE: {READ},
    Op.S_READ: {READ},
    Op.S_READ_MANY: {READ},
    Op.S_OFFSETS_AT: {READ},
}


def user(peer: Peer, *grants: Grant, name: str = "ana") -> Peer:
    peer.identity = Identity(User(name, grants=grants), None)
    return peer


def forbidden(peer: Peer, op: Op) -> bool:
    reply = peer.replies.get(peer.send(op, REQUESTS[op]))
    return isinstance(reply, Forbidden)


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.client().make(NAME)
    return desk


@pytest.mark.parametrize("op", NEEDS, ids=lambda op: op.name)
def test_each_action_permits_exactly_what_needs_it(desk: Desk, op: Op) -> None:
    for action in Action:
        peer = user(desk.client(), Grant("stream", action))
        assert forbidden(peer, op) == (action not in NEEDS[op]), action
    assert forbidden(user(desk.client()), op)
    assert forbidden(user(desk.client(), Grant("queue")), op)


@pytest.mark.parametrize("op", set(NEEDS) - {Op.S_PRODUCER, Op.S_LIST}, ids=lambda op: op.name)
def test_a_permission_for_another_name_is_none(desk: Desk, op: Op) -> None:
    assert forbidden(user(desk.client(), Grant("stream", pattern="another")), op)


def test_a_refusal_speaks_of_things_and_names_the_permission(desk: Desk) -> None:
    """Nobody has to know an opcode to see what is missing."""
    said = f"user 'ana' may not read stream '{NAME}': it needs .* stream:read:{NAME}$"
    with pytest.raises(Forbidden, match=said):
        user(desk.client()).ask(Op.S_READ, REQUESTS[Op.S_READ])


def test_a_transaction_writes_only_where_its_user_may(desk: Desk) -> None:
    peer = user(desk.client(), Grant("stream", WRITE, "other"))
    begun = peer.call(Op.S_TX_BEGIN, TxBegin(), int)
    request = begun.to_bytes(8, "big") + publish_head(NAME, 0) + peer.batch(b"a", flags=4)
    with pytest.raises(Forbidden):
        peer.ask(Op.S_TX_PUBLISH, request)


def test_what_a_transaction_relies_on_must_be_readable(desk: Desk) -> None:
    peer = user(desk.client(), Grant("stream", READ, NAME))
    number = peer.call(Op.S_TX_BEGIN, TxBegin(), int)
    relied = TxInputs(transaction=number, unchanged=[KeyAt("secret", b"k", 0)])
    with pytest.raises(Forbidden, match="secret"):
        peer.ask(Op.S_TX_INPUTS, wire.pack(relied))


def test_a_list_shows_what_the_user_may_see_and_nothing_else(desk: Desk) -> None:
    for name in ("mine/1", "mine/2", "other"):
        desk.client().make(name)
    peer = user(desk.client(), Grant("stream", READ, "mine/*"))
    assert peer.call(Op.S_LIST, wire.ListAsk(), list[str]) == ["mine/1", "mine/2"]
    assert peer.call(Op.S_LIST, wire.ListAsk(prefix="mine/2"), list[str]) == ["mine/2"]


@pytest.mark.parametrize("asker", ["bob", None])
def test_only_the_user_that_began_a_transaction_learns_its_outcome(
    desk: Desk, asker: str | None
) -> None:
    """G15: the numbers of transactions can be guessed."""
    ana = user(desk.client())
    number = ana.call(Op.S_TX_BEGIN, TxBegin(), int)
    stranger = desk.client() if asker is None else user(desk.client(), name=asker)
    with pytest.raises(TransactionAborted):
        stranger.ask(Op.S_TX_OUTCOME, wire.pack(number))
    other = user(desk.client())
    waiting = other.send(Op.S_TX_OUTCOME, wire.pack(number))
    assert waiting not in other.replies
    ana.ask(Op.S_TX_COMMIT, wire.pack(number))
    assert other.replies[waiting] == "ok"
    for each in (desk, Desk(desk.files)):
        assert user(each.client()).ask(Op.S_TX_OUTCOME, wire.pack(number)) == "ok"
        stranger = each.client() if asker is None else user(each.client(), name=asker)
        with pytest.raises(TransactionAborted):
            stranger.ask(Op.S_TX_OUTCOME, wire.pack(number))


def test_a_snapshot_keeps_whose_transactions_were_committed(desk: Desk) -> None:
    ana = user(desk.client())
    number = ana.call(Op.S_TX_BEGIN, TxBegin(), int)
    ana.ask(Op.S_TX_COMMIT, wire.pack(number))
    desk.service.close()
    again = Desk(desk.files)
    assert user(again.client()).ask(Op.S_TX_OUTCOME, wire.pack(number)) == "ok"
    with pytest.raises(NexoError):
        again.client().ask(Op.S_TX_OUTCOME, wire.pack(number))
