"""What every endpoint works with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nexo.client._async.client import AsyncClient
from nexo.config import Settings
from nexo.model import Broker

if TYPE_CHECKING:
    from nexo.admin.sampler import Sampler
    from nexo.client._async.connection import Link

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class Place:
    """The server this process belongs to."""

    settings: Settings
    broker_port: int
    run_folder: Path

    def client(self, user: str | None = None, password: str | None = None) -> AsyncClient:
        """A new client of the brokers; a request that cannot be sent fails at once."""
        host = self.settings.host
        return AsyncClient(
            "nexo://localhost",
            host=_ANY_ADDRESS.get(host, host),
            port=self.broker_port,
            tls=self.settings.tls_cert is not None,
            verify=False,  # it is this very server, on this machine
            client="dashboard",
            user=user,
            password=password,
            while_down="fail",
            timeout_s=10.0,
        )


@dataclass(slots=True)
class Desk:
    """The brokers as one caller may use them, and what is known of them anyway."""

    place: Place
    client: AsyncClient
    sampler: Sampler
    stopping: asyncio.Event
    """Set when long replies must end."""
    user: str | None = None
    tails: set[object] = field(default_factory=set)
    """Live views that are open, shared by all callers."""

    def link(self, broker: Broker) -> Link:
        """The connection to a broker, for what the client does not offer."""
        return self.client.link(broker)
