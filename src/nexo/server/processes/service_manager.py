"""Tells systemd how the service is doing (``Type=notify``); does nothing under anything else."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(text: str) -> None:
    """Send one state, such as ``READY=1`` or ``STOPPING=1``."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(text.encode(), address)
