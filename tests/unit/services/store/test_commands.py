"""The table of store commands agrees with the requests, the engine and what users may do."""

from __future__ import annotations

from inspect import signature
from operator import attrgetter

import pytest

from nexo.brokers.store.engine import StoreEngine
from nexo.protocol import store as wire
from nexo.protocol.ops import Op
from nexo.services.store.commands import COMMANDS, StoreCommand

BLOCKING = {"wait_ms"}


def test_every_request_has_a_row() -> None:
    assert {op.name for op in wire.REQUESTS} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_a_request_has_the_arguments_of_its_engine_method(command: StoreCommand) -> None:
    fields = set(wire.REQUESTS[Op[command.name]].__struct_fields__)
    method = attrgetter(command.method)(StoreEngine())
    assert fields - BLOCKING == set(signature(method).parameters) - {"now_ms"}
    assert command.keys in fields | {"all"}
