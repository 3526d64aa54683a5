"""The opcode table."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from nexo.model import Broker
from nexo.protocol import ops
from nexo.protocol.ops import BROKER_OF, Op

EXISTING_CLIENT = {
    "ECHO": 0x00, "MAP_SET": 0x02, "MAP_GET": 0x03, "MAP_DEL": 0x04,
    "Q_CREATE": 0x10, "Q_PUSH": 0x11, "Q_CONSUME": 0x12, "Q_ACK": 0x13, "Q_EXISTS": 0x14,
    "Q_DELETE": 0x15, "Q_PEEK_DLQ": 0x16, "Q_MOVE_TO_QUEUE": 0x17, "Q_DELETE_DLQ": 0x18,
    "Q_PURGE_DLQ": 0x19, "Q_NACK": 0x1A, "PUB": 0x21, "SUB": 0x22, "UNSUB": 0x23,
    "S_CREATE": 0x30, "S_PUB": 0x31, "S_FETCH": 0x32, "S_JOIN": 0x33, "S_ACK": 0x34,
    "S_EXISTS": 0x35, "S_DELETE": 0x36, "S_NACK": 0x37, "S_SEEK": 0x38, "S_LEAVE": 0x39,
}  # fmt: skip


@pytest.mark.parametrize("name", EXISTING_CLIENT)
def test_the_existing_clients_opcodes_stay_as_they_are(name: str) -> None:  # SPEC A9
    assert Op[name] == EXISTING_CLIENT[name]


def test_no_number_is_used_twice() -> None:
    assert len(Op.__members__) == len({op.value for op in Op})


@pytest.mark.parametrize(
    ("op", "broker"),
    [
        (Op.MAP_GET, Broker.STORE), (Op.Q_PUSH, Broker.QUEUE), (Op.PUB, Broker.PUBSUB),
        (Op.S_FETCH, Broker.STREAM), (Op.ECHO, None), (Op.HELLO, None), (Op.STATUS, None),
    ],
)  # fmt: skip
def test_an_opcode_tells_its_broker(op: Op, broker: Broker | None) -> None:
    assert BROKER_OF[op] is broker


def test_every_possible_byte_has_an_answer() -> None:
    assert len(BROKER_OF) == 256


def test_the_table_names_only_messages_that_exist() -> None:
    text = Path(ops.__file__).read_text(encoding="utf-8")
    named = re.findall(r"`(queue|server)\.(\w+)`", text)
    assert len(named) > 20
    known = {module: vars(import_module(f"nexo.protocol.{module}")) for module, _ in named}
    assert [name for module, name in named if name not in known[module]] == []
