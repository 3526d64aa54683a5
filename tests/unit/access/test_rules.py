"""Every opcode against every permission, generated from the code (SPEC A10)."""

from __future__ import annotations

import pytest

from nexo.access.grants import Action, Extent, Grant
from nexo.access.guard import _guarded
from nexo.access.login import Identity
from nexo.access.rules import LOGIN, RULES
from nexo.access.users import User
from nexo.errors import Forbidden, NexoError
from nexo.model import Broker
from nexo.protocol.ops import BROKER_OF, Op
from tests.unit.access.samples import NAME, REQUESTS

OPS = sorted(op for op in RULES if BROKER_OF[op] is not None)
ASKED_IN_USE_CASE = {op for op in OPS if RULES[op] is LOGIN}
"""Their permissions are asked, and tested, with the broker's service."""


class Caller:
    """As much of a connection as a guarded handler looks at."""

    def __init__(self, *grants: Grant) -> None:
        self.identity = Identity(User("ana", grants=grants), None)
        self.ran = 0


def run(op: Op, caller: Caller) -> None:
    def handler(peer: object, request_id: int, payload: memoryview) -> None:
        caller.ran += 1

    guarded = _guarded(op, handler, RULES[op])
    guarded(caller, 1, memoryview(REQUESTS[op]))  # type: ignore[arg-type]


def broker_of(op: Op) -> Broker:
    return BROKER_OF[op] or Broker.STORE


def test_every_opcode_has_a_rule_and_a_sample() -> None:
    assert set(RULES) == set(Op) - {Op.HELLO}
    assert set(REQUESTS) == set(RULES)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_user_without_permissions_can_only_do_what_touches_nothing(op: Op) -> None:
    caller = Caller()
    transactions = {Op.S_TX_BEGIN, Op.S_TX_COMMIT, Op.S_TX_ABORT, Op.S_TX_OUTCOME}
    if op in transactions or op in ASKED_IN_USE_CASE:
        run(op, caller)
        assert caller.ran == 1
    else:
        with pytest.raises(Forbidden, match="user 'ana' may not") as refused:
            run(op, caller)
        assert op.name not in refused.value.message
        assert not caller.ran


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_each_action_permits_exactly_the_requests_whose_rule_names_it(
    op: Op, action: Action
) -> None:
    caller = Caller(Grant(broker_of(op).label, action))
    if not RULES[op].actions or action in RULES[op].actions:
        run(op, caller)
        assert caller.ran == 1
    else:
        with pytest.raises(Forbidden):
            run(op, caller)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_permission_for_another_broker_or_name_is_none(op: Op) -> None:
    if not RULES[op].actions:
        return
    other = next(broker for broker in Broker if broker != broker_of(op))
    with pytest.raises(Forbidden):
        run(op, Caller(Grant(other.label)))
    if RULES[op].extent is not Extent.GROUP:
        with pytest.raises(Forbidden):
            run(op, Caller(Grant(broker_of(op).label, pattern="another")))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_permission_for_the_very_name_is_enough(op: Op) -> None:
    rule = RULES[op]
    if rule.extent is Extent.PREFIX:
        pattern = f"{NAME}*" if op in {Op.KEY_SCAN, Op.S_LIST} else "*"
    else:
        pattern = NAME
    run(op, Caller(Grant(broker_of(op).label, pattern=pattern)))


@pytest.mark.parametrize("op", [op for op in OPS if RULES[op].actions], ids=lambda op: op.name)
def test_what_cannot_be_read_is_refused_before_it_runs(op: Op) -> None:
    caller = Caller(Grant(broker_of(op).label, pattern="nothing"))
    for payload in (b"", b"\xff" * 40, b"\x93\xc1", REQUESTS[op][:-1]):
        guarded = _guarded(op, lambda *_: None, RULES[op])
        if op == Op.Q_LIST:  # which asks nothing
            continue
        with pytest.raises(NexoError):
            guarded(caller, 1, memoryview(payload))  # type: ignore[arg-type]
