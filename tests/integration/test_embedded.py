"""The embedded server ends with all its connections (SPEC K2)."""

from __future__ import annotations

import socket
import warnings

import pytest

from nexo.testing import Server


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_connections_that_were_just_made_end_with_it(how: str) -> None:
    """One that is left would be found by whoever comes next in the process."""
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(10):
            server = Server()
            server.start()
            made = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
            getattr(server, how)()
            for connection in made:
                with connection:
                    connection.settimeout(20)
                    assert _ended(connection)
            server.close()
    assert not [str(warning.message) for warning in left]


def _ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
