"""This server among those that replicate to one object store."""

from __future__ import annotations

import msgspec

from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes, Nothing
from nexo.model import Broker
from nexo.replication.state import ReplicaState

routes = ApiRoutes("Replicas")


class BrokerLog(msgspec.Struct):
    """How much of one broker its leader has shipped."""

    broker: str
    number: int
    """The next object of the log."""
    lag_ms: int
    lag_bytes: int
    puts: int
    put_failures: int
    put_ms: float
    """How long recent puts took."""
    last_put_ms: int


class ReplicaPage(msgspec.Struct):
    """Roles, lag and the last put."""

    replicates: bool
    """Whether the server was started with an object store."""
    state: ReplicaState | None
    logs: list[BrokerLog]
    """Of a leader."""


@routes.get("/replicas")
async def replicas(context: ApiContext, ask: Nothing) -> ReplicaPage:
    """The leader, the lag of the object store, and problems."""
    await context.check_watchable(*Broker)
    sampler = context.sampler
    logs = [
        msgspec.convert({"broker": watch.broker.label, **watch.status["replica"]}, BrokerLog)
        for watch in sampler.brokers.values()
        if watch.up and watch.status.get("replica")
    ]
    return ReplicaPage(bool(context.place.settings.replicate), sampler.replica, logs)
