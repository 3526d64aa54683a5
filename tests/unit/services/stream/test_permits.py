"""Who may do what with a group, asked at the use case whatever the protocol (SPEC A10)."""

from __future__ import annotations

from typing import Any

import pytest

from nexo.access.grants import Action, Grant
from nexo.access.login import Identity
from nexo.access.users import User
from nexo.errors import Forbidden, NexoError, NotMember
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol import xstreams
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import TxBegin, TxInputs, TxOffsets
from tests.unit.access.samples import GROUP, NAME, REQUESTS
from tests.unit.brokers.stream.desk import Desk, Peer

READ, WRITE, ADMIN = {Action.READ}, {Action.WRITE}, {Action.ADMIN}
NEEDS = {
    Op.S_FETCH: READ, Op.S_JOIN: READ, Op.S_ACK: READ, Op.S_NACK: READ, Op.S_SEEK: READ,
    Op.S_LEAVE: READ, Op.S_TAKE: READ, Op.S_SETTLE: READ, Op.S_NEXT: READ, Op.S_GROUP_JOIN: READ,
    Op.S_GROUP_LEAVE: READ, Op.S_GROUP_SEEK: READ, Op.S_GROUP_DELETE: ADMIN, Op.S_PARKED: READ,
    Op.S_PARKED_SETTLE: ADMIN, Op.S_ORDERED_JOIN: READ, Op.S_ORDERED_LEAVE: READ,
    Op.S_HEARTBEAT: READ, Op.S_COMMIT: READ, Op.S_COMMITTED: READ, Op.S_ORDERED_SEEK: READ,
    Op.S_ORDERED_GROUPS: READ, Op.S_ORDERED_DELETE: ADMIN, Op.S_X_ADD: WRITE, Op.S_X_GROUP: READ,
    Op.S_X_READ: READ, Op.S_X_ACK: READ, Op.S_X_PENDING: READ, Op.S_X_CLAIM: READ,
    Op.S_X_RENEW: READ, Op.S_X_CONSUMER_DELETE: READ, Op.S_X_INFO: READ, Op.S_X_RANGE: READ,
    Op.S_X_DELETE: ADMIN, Op.S_X_TRIM: ADMIN,
}  # fmt: skip
OF_EVERYTHING = {Op.S_ORDERED_DELETE}
"""It names no stream, and a group may read any."""
OF_A_STREAM = {Op.S_X_ADD, Op.S_X_INFO, Op.S_X_RANGE, Op.S_X_DELETE, Op.S_X_TRIM}
BY_GROUP = {Op.S_ORDERED_LEAVE, Op.S_HEARTBEAT, Op.S_COMMITTED}
"""They name a group only: while it is unknown, a grant for it on any stream will do."""
OPS = sorted(NEEDS)


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.client().make(NAME)
    return desk


def user(desk: Desk, *grants: str, name: str = "ana") -> Peer:
    """A client with grants written ``action:pattern``."""
    peer = desk.client()
    parts = [each.split(":") for each in grants]
    allowed = tuple(Grant("stream", action, pattern) for action, pattern in parts)
    peer.identity = Identity(User(name, grants=allowed), None)
    return peer


def refused(peer: Peer, op: Op) -> bool:
    reply = peer.replies.get(peer.send(op, REQUESTS[op]))
    return isinstance(reply, Forbidden)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_each_action_permits_exactly_the_requests_that_need_it(desk: Desk, op: Op) -> None:
    assert refused(user(desk), op)
    for action in Action:
        assert refused(user(desk, f"{action}:*"), op) is (action not in NEEDS[op])


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_grant_is_for_its_stream_and_group_only(desk: Desk, op: Op) -> None:
    action = next(iter(NEEDS[op]))
    assert refused(user(desk, f"{action}:{NAME}"), op) is (op in OF_EVERYTHING)
    by_group = op in OF_EVERYTHING or op in OF_A_STREAM
    assert refused(user(desk, f"{action}:{NAME}@{GROUP}"), op) is by_group
    assert refused(user(desk, f"{action}:{NAME}@other"), op)
    if op not in BY_GROUP:
        assert refused(user(desk, f"{action}:another"), op)


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (Op.S_TAKE, f"may not read stream '{NAME}' as group '{GROUP}'"),
        (Op.S_HEARTBEAT, rf"may not read the stream group '{GROUP}': .* stream:read:\*@{GROUP}$"),
        (Op.S_ORDERED_DELETE, "may not administer everything of the stream broker"),
    ],
    ids=lambda value: value.name if isinstance(value, Op) else "",
)
def test_a_refusal_speaks_of_things_and_names_the_permission(desk: Desk, op: Op, said: str) -> None:
    with pytest.raises(Forbidden, match=f"^user 'ana' {said}"):
        user(desk).ask(op, REQUESTS[op])


def test_ordered_groups_of_no_one_stream_take_a_permission_for_all(desk: Desk) -> None:
    """SPEC A10: a group may read any streams."""
    everything = wire.pack(ordered.OrderedAsk())
    for pattern in (NAME, f"{NAME}*", f"*@{GROUP}", "?*"):
        with pytest.raises(Forbidden, match="everything of the stream broker"):
            user(desk, f"read:{pattern}").ask(Op.S_ORDERED_GROUPS, everything)
    user(desk, "read:*").ask(Op.S_ORDERED_GROUPS, everything)


# -- ordered groups (finding G10) ------------------------------------------------------------


class Team:
    """The group ``team`` over ``orders`` and ``payments``, and a client that may read one."""

    def __init__(self) -> None:
        self.desk = Desk()
        maker = self.desk.client()
        for name in ("orders", "payments", "mine"):
            maker.make(name)
            maker.publish(name, b"a", b"b")
        self.owner = user(self.desk, "read:orders@team", "read:payments@team", name="owner")
        self.me = self.join(self.owner, "orders", "payments")
        self.commit(self.owner, ("orders", 0, 0, "place"))

    def join(self, peer: Peer, *topics: str, member: str = "") -> ordered.Assigned:
        ask = ordered.OrderedJoin(group="team", topics=list(topics), member=member)
        return peer.call(Op.S_ORDERED_JOIN, ask, ordered.Assigned)

    def commit(self, peer: Peer, row: ordered.OffsetRow, generation: int | None = None) -> None:
        known = self.me.generation if generation is None else generation
        ask = ordered.Commit(group="team", offsets=[row], member=self.me.member, generation=known)
        peer.ask(Op.S_COMMIT, wire.pack(ask))

    def beat(self, peer: Peer) -> ordered.Assigned:
        ask = ordered.Heartbeat(group="team", member=self.me.member, generation=self.me.generation)
        return peer.call(Op.S_HEARTBEAT, ask, ordered.Assigned)

    def stored(self, peer: Peer, topic: str | None = None) -> list[ordered.CommittedAt]:
        ask = ordered.CommittedAsk(group="team", topic=topic)
        return peer.call(Op.S_COMMITTED, ask, list[ordered.CommittedAt])

    def leave(self, peer: Peer) -> Any:
        ask = ordered.OrderedLeave(group="team", member=self.me.member)
        return peer.ask(Op.S_ORDERED_LEAVE, wire.pack(ask))

    def seek(self, peer: Peer, topic: str) -> None:
        ask = ordered.OrderedSeek(group="team", offsets=[(topic, 0, 0, "")])
        peer.ask(Op.S_ORDERED_SEEK, wire.pack(ask))

    def unmoved(self) -> bool:
        """Whether the owner goes on as before."""
        return self.beat(self.owner) == self.me


@pytest.mark.parametrize("grants", [("read:mine",), ("read:orders",), ("read:mine", "read:orders")])
def test_a_grant_on_one_stream_moves_no_group_of_others(grants: tuple[str, ...]) -> None:
    team = Team()
    stranger = user(team.desk, *grants, name="stranger")
    topic = grants[0].partition(":")[2]
    for act in (
        lambda: team.join(stranger, topic),
        lambda: team.join(stranger, topic, member=team.me.member),
        lambda: team.beat(stranger),
        lambda: team.leave(stranger),
        lambda: team.stored(stranger),
        lambda: team.stored(stranger, "payments"),
        lambda: team.seek(stranger, topic),
        lambda: team.commit(stranger, ("payments", 0, 1, ""), -1),
    ):
        with pytest.raises(Forbidden):
            act()
    with pytest.raises((Forbidden, NotMember)):
        team.commit(stranger, (topic, 0, 1, ""))
    assert team.unmoved()
    assert [row.offset for row in team.stored(team.owner)] == [0]


def test_a_member_is_moved_only_by_the_connection_it_joined_on() -> None:
    team = Team()
    second = user(team.desk, "read:orders@team", "read:payments@team", name="second")
    for act in (team.beat, team.leave, lambda peer: team.commit(peer, ("orders", 0, 1, ""))):
        with pytest.raises(NotMember):
            act(second)
    with pytest.raises(Forbidden, match="belongs to another user"):
        team.join(second, "orders", member=team.me.member)
    assert team.unmoved()


def commit_in_transaction(peer: Peer, team: Team, row: ordered.OffsetRow) -> None:
    begin = wire.pack(TxBegin(timeout_ms=10_000))
    number = wire.unpack(int, peer.ask(Op.S_TX_BEGIN, begin))
    moved = TxOffsets("team", team.me.member, team.me.generation, [row])
    peer.ask(Op.S_TX_INPUTS, wire.pack(TxInputs(number, offsets=[moved])))
    peer.ask(Op.S_TX_COMMIT, wire.pack(number))


def test_a_transaction_commits_only_for_members_of_its_user() -> None:
    team = Team()
    second = user(team.desk, "read:orders@team", "read:payments@team", name="second")
    with pytest.raises(NotMember):
        commit_in_transaction(second, team, ("orders", 0, 1, ""))
    commit_in_transaction(team.owner, team, ("orders", 0, 1, ""))
    assert [row.offset for row in team.stored(team.owner)] == [1]


def test_a_transaction_may_be_on_another_connection_than_its_member() -> None:
    """As that of an exactly-once context and its consumer, each with a client of its own."""
    team = Team()
    context = user(team.desk, "read:orders@team", "read:payments@team", name="owner")
    commit_in_transaction(context, team, ("orders", 0, 1, ""))
    assert [row.offset for row in team.stored(team.owner)] == [1]
    assert team.unmoved()


def test_a_member_may_be_taken_over_by_its_own_user() -> None:
    """As after a reconnect that the broker has not noticed yet."""
    team = Team()
    again = user(team.desk, "read:orders@team", "read:payments@team", name="owner")
    team.me = team.join(again, "orders", "payments", member=team.me.member)
    assert team.beat(again) == team.me
    with pytest.raises(NotMember):
        team.beat(team.owner)
    team.owner.close()
    assert team.beat(again) == team.me


def test_a_member_goes_on_when_another_reads_more_than_it_may() -> None:
    team = Team()
    wider = user(team.desk, "read:*", name="wider")
    team.join(wider, "mine")
    assert team.beat(team.owner).generation > team.me.generation
    team.leave(team.owner)


def test_a_group_without_members_is_moved_in_the_streams_one_may_read() -> None:
    team = Team()
    team.commit(team.owner, ("payments", 0, 0, ""))
    team.leave(team.owner)
    reader = user(team.desk, "read:orders", "read:mine", name="reader")
    team.seek(reader, "orders")
    with pytest.raises(Forbidden, match="payments"):
        team.seek(reader, "mine")  # which the group has never read
    with pytest.raises(Forbidden, match="payments"):
        team.join(reader, "orders")


def test_leaving_twice_is_fine() -> None:
    team = Team()
    team.leave(team.owner)
    assert team.leave(team.owner) == "ok"


# -- creating by use (finding G15) -----------------------------------------------------------


def test_a_reader_makes_no_stream_by_making_a_group(desk: Desk) -> None:
    make = wire.pack(xstreams.MakeGroup("absent", GROUP, None))
    with pytest.raises(Forbidden, match="may not write or administer stream 'absent'"):
        user(desk, "read:*").ask(Op.S_X_GROUP, make)
    names = wire.unpack(list[str], desk.client().ask(Op.S_LIST, wire.pack(wire.ListAsk())))
    assert names == [NAME]
    user(desk, "read:absent", "write:absent").ask(Op.S_X_GROUP, make)
    user(desk, "read:absent").ask(Op.S_X_GROUP, make)


def test_a_refused_request_changes_nothing(desk: Desk) -> None:
    peer = user(desk, "write:*")
    for op in OPS:
        if Action.WRITE not in NEEDS[op]:
            reply = peer.replies[peer.send(op, REQUESTS[op])]
            assert isinstance(reply, NexoError)
    assert desk.client().describe(NAME).groups == []
