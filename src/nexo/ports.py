"""Free TCP ports for servers in tests: never one twice, and none that a client may be given."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _USUAL_EPHEMERAL = 10_000, 32_768
_given: set[int] = set()


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on, below those the system gives to outgoing connections.

    So nobody takes it by chance before the server opens it, or while the server restarts.
    """
    highest = max(_first_ephemeral(), _LOWEST + 1_000)
    while True:
        port = random.randrange(_LOWEST, highest)
        if port not in _given and _is_free(host, port):
            _given.add(port)
            return port


def _first_ephemeral() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_EPHEMERAL


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
