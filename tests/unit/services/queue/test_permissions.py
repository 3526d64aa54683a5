"""Who may do what with a queue, asked at the use case whatever the protocol (SPEC A10)."""

from __future__ import annotations

import pytest

from nexo.access.grants import Action, Grant
from nexo.access.login import Identity
from nexo.access.users import User
from nexo.errors import Forbidden, NexoError
from nexo.model.blocks import id_text
from nexo.protocol.ops import Op
from nexo.protocol.queue import Jobs, decode, encode
from tests.memory_files import MemoryFiles
from tests.unit.access.samples import NAME, REQUESTS
from tests.unit.brokers.queue.desk import Desk, DeskPeer

READ, WRITE, ADMIN = {Action.READ}, {Action.WRITE}, {Action.ADMIN}
ANY = set(Action)
NEEDS = {
    Op.Q_CREATE: ADMIN, Op.Q_PUSH: WRITE, Op.Q_CONSUME: READ, Op.Q_ACK: READ, Op.Q_NACK: READ,
    Op.Q_EXISTS: ANY, Op.Q_DELETE: ADMIN, Op.Q_PEEK_DLQ: READ, Op.Q_MOVE_TO_QUEUE: ADMIN,
    Op.Q_DELETE_DLQ: ADMIN, Op.Q_PURGE_DLQ: ADMIN, Op.Q_DECLARE: ADMIN, Op.Q_UPDATE: ADMIN,
    Op.Q_INFO: ANY, Op.Q_LIST: ANY, Op.Q_SURVEY: ANY, Op.Q_PURGE: ADMIN, Op.Q_PAUSE: ADMIN,
    Op.Q_BEGIN: READ, Op.Q_PUSH_MANY: WRITE, Op.Q_POP: READ, Op.Q_SETTLE: READ, Op.Q_RENEW: READ,
    Op.Q_PROGRESS: READ, Op.Q_JOB: ANY, Op.Q_PEEK: READ, Op.Q_CANCEL_JOB: WRITE | ADMIN,
    Op.Q_DLQ_LIST: READ, Op.Q_DLQ_REPLAY: ADMIN, Op.Q_DLQ_DELETE: ADMIN, Op.Q_CRON_SET: ADMIN,
    Op.Q_CRON_DELETE: ADMIN, Op.Q_CRON_LIST: READ,
}  # fmt: skip


def user(desk: Desk, *grants: Grant, name: str = "ana") -> DeskPeer:
    peer = desk.client()
    peer.identity = Identity(User(name, grants=grants), None)
    return peer


def refused(desk: Desk, peer: DeskPeer, op: Op) -> bool:
    request_id = peer.send(op, REQUESTS[op])
    desk.runtime.end_turn()
    return isinstance(peer.replies.get(request_id), Forbidden)


def test_every_queue_request_is_in_the_table() -> None:
    assert set(NEEDS) == {op for op in Op if op.name.startswith("Q_")}


@pytest.mark.parametrize("op", NEEDS, ids=lambda op: op.name)
def test_each_action_permits_exactly_the_requests_that_need_it(op: Op) -> None:
    desk = Desk(MemoryFiles())
    for action in Action:
        peer = user(desk, Grant("queue", action, NAME))
        if op in (Op.Q_CREATE, Op.Q_DECLARE) or NAME not in {
            row.name for row in desk.service.registry
        }:
            desk.client().create(NAME)
        assert refused(desk, peer, op) == (action not in NEEDS[op])


@pytest.mark.parametrize("op", NEEDS, ids=lambda op: op.name)
def test_a_permission_for_another_broker_or_queue_is_none(op: Op) -> None:
    desk = Desk(MemoryFiles())
    desk.client().create(NAME)
    assert refused(desk, user(desk, Grant("stream")), op)
    if op not in (Op.Q_LIST, Op.Q_SURVEY):
        assert refused(desk, user(desk, Grant("queue", pattern="another")), op)


def test_a_refusal_names_the_queue_and_the_permission() -> None:
    desk = Desk(MemoryFiles())
    with pytest.raises(Forbidden, match=f"user 'ana' may not write queue '{NAME}'"):
        user(desk).call(Op.Q_PUSH, REQUESTS[Op.Q_PUSH])


def test_a_list_shows_what_the_user_may_see_and_nothing_else() -> None:
    desk = Desk(MemoryFiles())
    for name in ("mine/2", "mine/1", "other"):
        desk.client().create(name)

    def names(*grants: Grant) -> list[str]:
        rows = decode(user(desk, *grants).call(Op.Q_LIST, b""), list[dict[str, object]])
        return [str(row["name"]) for row in rows]

    assert names(Grant("queue", Action.READ, "mine/*")) == ["mine/1", "mine/2"]
    assert names(Grant("queue", Action.READ, "nothing")) == []
    assert names(Grant("queue")) == ["mine/1", "mine/2", "other"]
    with pytest.raises(Forbidden):
        names()


def cancel(peer: DeskPeer, *jobs: int) -> int:
    incarnation = peer.info("q")["created_ms"]
    ids = [id_text(incarnation, job) for job in jobs]
    return decode(peer.call(Op.Q_CANCEL_JOB, encode(Jobs("q", ids))), int)


def test_who_may_only_push_cancels_its_own_jobs_and_nobody_elses() -> None:
    """G15: permission to push is not permission to cancel what others pushed."""
    desk = Desk(MemoryFiles())
    desk.client().create("q")
    push = Grant("queue", Action.WRITE, "q")
    ana, bob = user(desk, push), user(desk, push, name="bob")
    admin = user(desk, Grant("queue", Action.ADMIN, "q"), name="root")
    ana.push_many("q", [b"\0a", b"\0b"], delay_ms=1_000)
    bob.push_many("q", [b"\0c"], delay_ms=1_000)
    with pytest.raises(Forbidden):
        cancel(bob, 0)
    with pytest.raises(Forbidden):
        cancel(ana, 0, 2)
    assert desk.client().info("q")["scheduled"] == 3
    assert cancel(ana, 0) == 1
    assert cancel(admin, 1, 2) == 2


def test_who_pushed_a_job_is_known_after_a_restart() -> None:
    files = MemoryFiles()
    desk = Desk(files)
    desk.client().create("q")
    push = Grant("queue", Action.WRITE, "q")
    user(desk, push).push_many("q", [b"\0a"], delay_ms=1_000)
    again = Desk(files, desk.runtime.time.now)
    with pytest.raises(Forbidden):
        cancel(user(again, push, name="bob"), 0)
    assert cancel(user(again, push), 0) == 1


def test_an_error_of_a_use_case_is_a_typed_one() -> None:
    peer = Desk(MemoryFiles()).client()
    with pytest.raises(NexoError, match="not found"):
        peer.info("absent")
