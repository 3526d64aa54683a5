"""TLS on 7654: routing by ALPN, client certificates, nothing in the clear (SPEC A10)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import nexo
from nexo.errors import ConnectionLost, NexoError
from nexo.protocol.frames import Kind, frame
from nexo.protocol.ops import Op
from nexo.testing import Process, Server
from tests.integration.certificates import Certificates, make


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def served(certs: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("tls") / "nexo"
    process = Process(folder, dashboard=False, tls_cert=certs.server, tls_key=certs.server_key)
    process.start()
    yield process
    process.close()


def test_every_broker_serves_over_tls(served: Process, certs: Certificates) -> None:
    with nexo.connect(f"{served.url}?ca_file={certs.ca}") as client:
        client.store.set("k", "v")
        assert client.store.get("k") == "v"
        assert client.queue("q").create().push(b"x" * 500_000)
        client.pubsub.publish("t", 1)
        client.stream("s").create().publish("record")


async def test_the_async_client_speaks_tls_too(served: Process, certs: Certificates) -> None:
    async with nexo.AsyncClient(f"{served.url}?ca_file={certs.ca}") as client:
        await asyncio.gather(*(client.store.set(f"k{n}", n) for n in range(200)))
        assert await client.store.get("k199") == 199


def test_the_handshake_names_the_broker(served: Process, certs: Certificates) -> None:
    context = ssl.create_default_context(cafile=str(certs.ca))
    context.set_alpn_protocols(["nexo-queue"])
    with (
        socket.create_connection(("127.0.0.1", served.port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        assert secure.selected_alpn_protocol() == "nexo-queue"
        secure.sendall(frame(Kind.REQUEST, Op.ECHO, 7, b"hi"))
        assert secure.recv(100)[10:] == b"hi"


def test_a_client_without_alpn_reaches_every_broker_by_relay(
    served: Process, certs: Certificates
) -> None:
    context = ssl.create_default_context(cafile=str(certs.ca))
    with (
        socket.create_connection(("127.0.0.1", served.port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(frame(Kind.REQUEST, Op.Q_EXISTS, 7, b"\0\0\0\1x"))
        assert b"not found" in secure.recv(100)


def test_plain_text_is_refused(served: Process) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=15) as plain:
        plain.sendall(frame(Kind.REQUEST, Op.ECHO, 7, b"hi"))
        heard = plain.recv(100)
        assert b"hi" not in heard, "nothing is answered in the clear"
        while heard:
            heard = plain.recv(100)


def test_a_server_the_client_does_not_trust_is_refused(served: Process) -> None:
    with pytest.raises(NexoError), nexo.connect(f"{served.url}?while_down=fail") as client:
        client.store.get("k")


@pytest.mark.slow
def test_a_client_certificate_is_asked_for_and_checked(certs: Certificates, tmp_path: Path) -> None:
    with_certificate = f"&ca_file={certs.ca}&cert_file={certs.client}"
    process = Process(
        tmp_path / "nexo", dashboard=False, tls_cert=certs.server, tls_key=certs.server_key,
        tls_client_ca=certs.ca, client_certificate=with_certificate,
    )  # fmt: skip
    try:
        process.start()
        with nexo.connect(f"{process.url}?timeout=5{with_certificate}") as client:
            client.store.set("k", 1)
            assert client.store.get("k") == 1
        without = f"{process.url}?ca_file={certs.ca}&while_down=fail&timeout=2"
        with pytest.raises(ConnectionLost), nexo.connect(without) as client:
            client.store.get("k")
    finally:
        process.close()


def test_the_embedded_server_speaks_tls(certs: Certificates, tmp_path: Path) -> None:
    server = Server(
        data_dir=tmp_path / "d", tls_cert=str(certs.server), tls_key=str(certs.server_key)
    )
    server.start()
    try:
        url = server.url.replace("nexo://", "nexos://")
        with nexo.connect(f"{url}?ca_file={certs.ca}") as client:
            client.store.set("k", 1)
            assert client.store.get("k") == 1
    finally:
        server.close()
