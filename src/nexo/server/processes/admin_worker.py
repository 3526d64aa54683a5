"""The process of the dashboard and HTTP API: ``python -m nexo.server.processes.admin_worker``.

It serves on a socket that the supervisor listens on, so the address survives a restart, and
talks to the brokers as any client does. Only its connections differ: they use each broker's socket
in the run folder, and so need no certificate.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import ssl
import sys
from pathlib import Path

import uvicorn

from nexo import limits
from nexo.access.grants import Action, Extent
from nexo.access.login import Logins, read_internal_token
from nexo.access.users import User
from nexo.admin.app import AdminApp
from nexo.admin.context import Account, Credentials, May, ServerAccess
from nexo.client.address import Address
from nexo.config import Settings, load
from nexo.errors import Unauthenticated
from nexo.model import Broker
from nexo.server.loop import run_loop
from nexo.server.processes import logs
from nexo.server.processes.http_server import HttpServer
from nexo.server.processes.system import name_process, yield_to_brokers

log = logging.getLogger("nexo.admin")

GRACE_S = 1


class FileAccounts:
    """The users file as the dashboard reads it: again on use, if it has changed."""

    def __init__(self, path: Path) -> None:
        self._logins = Logins(path)

    def who(self, credentials: Credentials) -> str | None:
        if credentials.token is None:
            return credentials.user
        self._logins.refresh()
        try:
            return self._logins.by_token(credentials.token).user.name
        except Unauthenticated:
            return None

    def every(self) -> list[Account]:
        return [_account(user) for _, user in sorted(self._known().items())]

    def may(self, user: str, broker: Broker, name: str) -> May:
        found = self._known().get(user)
        if found is None:
            return May(read=False, write=False, admin=False)
        extent = Extent.TOPICS if broker is Broker.PUBSUB else Extent.NAME
        allowed = {
            action.value: found.allows(broker, action, extent, name)
            if name
            else found.may_some(broker, (action,))
            for action in Action
        }
        return May(**allowed)

    def _known(self) -> dict[str, User]:
        self._logins.refresh()
        return self._logins.users


def _account(user: User) -> Account:
    grants = [str(grant) for grant in user.grants]
    return Account(user.name, grants, sorted(user.tokens), user.password is not None)


async def serve(
    settings: Settings, listener: socket.socket, lifeline_fd: int, run: str, url: str
) -> None:
    """Serve until asked to stop, or until ``lifeline_fd`` is readable: the supervisor is gone."""
    credentials = Credentials(token=read_internal_token(Path(run)))
    accounts = FileAccounts(settings.users_path) if settings.auth else None
    place = ServerAccess(
        settings, Address("127.0.0.1", door_folder=run), credentials, accounts, url
    )
    async with AdminApp(place) as admin:
        server = HttpServer(_config(settings, admin))

        def stop() -> None:
            admin.stop()
            server.should_exit = True

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop)
        loop.add_reader(lifeline_fd, stop)
        announcing = loop.create_task(_announce(admin, url))
        await server.serve([listener])
        announcing.cancel()
        loop.remove_reader(lifeline_fd)


async def _announce(admin: AdminApp, url: str) -> None:
    """Log that the dashboard is ready, once it is."""
    await admin.ready()
    log.info("the dashboard is ready at %s", url)


def _config(settings: Settings, admin: AdminApp) -> uvicorn.Config:
    tls = {
        "ssl_certfile": settings.tls_cert,
        "ssl_keyfile": settings.tls_key,
        "ssl_ca_certs": settings.tls_client_ca and str(settings.tls_client_ca),
        "ssl_cert_reqs": ssl.CERT_REQUIRED if settings.tls_client_ca else ssl.CERT_NONE,
    }
    return uvicorn.Config(
        admin.app,
        lifespan="off",
        ws="websockets-sansio",
        ws_max_size=limits.SOCKET_FRAME_BYTES,
        ws_ping_interval=limits.SOCKET_PING_S,
        ws_ping_timeout=limits.SOCKET_PING_S,
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
        **(tls if settings.tls_cert else {}),  # type: ignore[arg-type]
    )


def main(arguments: list[str]) -> None:
    listener_fd, lifeline_fd, run, url, text = arguments
    name_process("nexo: admin")
    settings = load(flags=json.loads(text))
    logs.configure(settings, "admin")
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it reports its own start and stop
    yield_to_brokers()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides when to stop
    listener = socket.socket(fileno=int(listener_fd))
    run_loop(serve(settings, listener, int(lifeline_fd), run, url))


if __name__ == "__main__":
    main(sys.argv[1:])
