"""Nexo's own protocol at work in one host."""

from __future__ import annotations

from nexo.dialects.dialect import HostPort, Origin, Speaker
from nexo.dialects.nexo.requests import build_table
from nexo.dialects.nexo.session import NexoSession
from nexo.dialects.nexo.shared import Shared


class NexoSpeaker(Speaker):
    """Makes a session for each connection."""

    def __init__(self, host: HostPort) -> None:
        self._shared = Shared(host, build_table(host.services))

    def session(self, origin: Origin) -> NexoSession:
        """A session for a new connection."""
        return NexoSession(self._shared, origin)

    def stop(self) -> None:
        """Reject requests from now on."""
        self._shared.table.refuse_all()
        self._shared.before_login.refuse_all()
