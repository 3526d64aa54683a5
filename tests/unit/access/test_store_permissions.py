"""Every request of the store against every permission (SPEC A10)."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from nexo.access.grants import Action, Grant
from nexo.access.login import Identity
from nexo.access.users import User
from nexo.dialects.nexo.store import StoreRequests
from nexo.errors import Forbidden, InvalidInput
from nexo.protocol.ops import Op
from nexo.protocol.store import REQUESTS as STORE
from nexo.services.store.service import StoreService
from tests.unit.access.samples import NAME, REQUESTS
from tests.unit.services.store.test_service import RecordingPeer, StoreRuntime

READS = {
    Op.MAP_GET, Op.KEY_EXISTS, Op.KEY_MGET, Op.KEY_INSPECT, Op.KEY_SCAN, Op.FIELDS_GET,
    Op.FIELDS_ALL, Op.FIELDS_COUNT, Op.LIST_RANGE, Op.LIST_LENGTH, Op.SET_CONTAINS,
    Op.SET_MEMBERS, Op.SET_SIZE,
}  # fmt: skip
OPS = sorted([*STORE, Op.MAP_SET, Op.MAP_GET, Op.MAP_DEL])


def action_of(op: Op) -> Action:
    if op == Op.STORE_CLEAR:
        return Action.ADMIN
    return Action.READ if op in READS else Action.WRITE


def run(op: Op, *grants: Grant) -> None:
    """Answer the request as its service does; what is not about permissions does not count."""
    peer: Any = RecordingPeer()
    peer.identity = Identity(User("ana", grants=grants), None)
    requests = StoreRequests(StoreService(StoreRuntime()))
    with contextlib.suppress(InvalidInput):  # LIST_REPLACE finds no list
        requests.handlers[op](peer, 1, memoryview(REQUESTS[op]))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_each_request_takes_its_own_action(op: Op) -> None:
    for action in Action:
        grant = Grant("store", action)
        if action is action_of(op):
            run(op, grant)
        else:
            with pytest.raises(Forbidden):
                run(op, grant)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_permission_for_another_broker_or_name_is_none(op: Op) -> None:
    for grants in ((), (Grant("queue"),), (Grant("store", pattern="another"),)):
        with pytest.raises(Forbidden, match="user 'ana' may not"):
            run(op, *grants)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_permission_for_the_very_name_is_enough(op: Op) -> None:
    if op != Op.STORE_CLEAR:
        run(op, Grant("store", pattern=f"{NAME}*" if op == Op.KEY_SCAN else NAME))


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (Op.MAP_SET, f"may not write store key '{NAME}': it needs .* store:write:{NAME}$"),
        (Op.STORE_CLEAR, r"may not administer everything of the store broker: .* store:admin:\*$"),
        (Op.KEY_SCAN, r"may not read (everything of the store broker|store keys that begin with)"),
    ],
    ids=lambda value: value.name if isinstance(value, Op) else "",
)
def test_a_refusal_speaks_of_things_and_names_the_permission(op: Op, said: str) -> None:
    with pytest.raises(Forbidden, match=f"^user 'ana' {said}"):
        run(op)
