"""What a server that stops says to clients that have just connected (SPEC A7, O3)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nexo.dialects.nexo.handlers import Handler
from nexo.dialects.nexo.requests import Table
from nexo.errors import ShuttingDown
from nexo.protocol.ops import Op


@pytest.mark.parametrize(("op", "is_coded"), [(Op.HELLO, True), (Op.ECHO, False)])
def test_a_hello_is_refused_with_a_code_so_that_the_client_tries_again(
    op: Op, is_coded: bool
) -> None:
    table = Table([None] * 256, [None] * 256)
    table.refuse_all()
    peer: Any = SimpleNamespace(said_hello=False)
    with pytest.raises(ShuttingDown):
        cast("Handler", table.handlers[op])(peer, 0, memoryview(b""))
    assert peer.said_hello is is_coded
