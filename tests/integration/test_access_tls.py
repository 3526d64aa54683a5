"""TLS on 7654: routing by ALPN, client certificates, nothing in the clear (SPEC A10)."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import nexo
from nexo.config import load
from nexo.errors import ConfigError, ConnectionLost, NexoError
from nexo.protocol.frames import FrameKind, frame
from nexo.protocol.ops import Op
from nexo.server.entrance.tls import server_context
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
        secure.sendall(frame(FrameKind.REQUEST, Op.ECHO, 7, b"hi"))
        assert secure.recv(100)[10:] == b"hi"


def test_a_client_without_alpn_reaches_every_broker_by_relay(
    served: Process, certs: Certificates
) -> None:
    context = ssl.create_default_context(cafile=str(certs.ca))
    with (
        socket.create_connection(("127.0.0.1", served.port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(frame(FrameKind.REQUEST, Op.Q_EXISTS, 7, b"\0\0\0\1x"))
        assert b"not found" in secure.recv(100)


def test_plain_text_is_refused(served: Process) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=15) as plain:
        plain.sendall(frame(FrameKind.REQUEST, Op.ECHO, 7, b"secret"))
        heard = plain.recv(100)
        assert b"secret" not in heard, "nothing is answered in the clear"
        while heard:
            heard = plain.recv(100)


async def said(url: str) -> set[str]:
    """What both clients say about a server they cannot talk to."""
    heard = set()
    with pytest.raises(NexoError) as error, nexo.connect(url) as client:
        client.store.get("k")
    heard.add(error.value.message)
    async with nexo.AsyncClient(url) as aclient:
        with pytest.raises(NexoError) as error:
            await aclient.store.get("k")
    return heard | {error.value.message}


async def test_a_server_the_client_does_not_trust_is_refused(served: Process) -> None:
    for text in await said(f"{served.url}?while_down=fail"):
        assert "certificate is not trusted" in text
        assert "ca_file" in text


async def test_a_client_that_forgot_tls_is_told(served: Process) -> None:
    for text in await said(f"{served.url.replace('nexos', 'nexo')}?while_down=fail"):
        assert "this server speaks TLS only: connect with nexos://" in text


async def test_a_client_that_wants_tls_of_a_plain_server_is_told(url: str) -> None:
    for text in await said(f"{url.replace('nexo', 'nexos')}?while_down=fail"):
        assert "the answer is not TLS" in text
        assert "nexo://" in text


async def test_a_client_at_a_port_that_is_not_nexos_is_told() -> None:
    """As the dashboard's, which ends a connection that does not speak HTTP."""
    other = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    heard = await asyncio.to_thread(asyncio.run, said(f"nexo://127.0.0.1:{port}?while_down=fail"))
    for text in heard:
        assert f"check that {port} is the TCP port" in text
        assert "TLS (nexos://)" in text
    other.close()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.close()


async def test_a_certificate_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    for option in ("ca_file", "cert_file"):
        for text in await said(f"nexos://127.0.0.1:1?{option}={tmp_path}/absent"):
            assert text == f"{option} = {tmp_path}/absent: No such file or directory"
        for text in await said(f"nexos://127.0.0.1:1?{option}={tmp_path}/junk"):
            assert text.startswith(f"{option} = {tmp_path}/junk holds no certificate")


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
        with pytest.raises(ConnectionLost, match="cert_file"), nexo.connect(without) as client:
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


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tls_cert": "absent"}, "tls_cert = {}/absent: No such file"),
        ({"tls_cert": "ca.key"}, "tls_cert = {}/ca.key holds no certificate"),
        ({"tls_cert": "server.pem"}, "holds no private key (PEM): name its file with tls_key"),
        ({"tls_cert": "server.pem", "tls_key": "absent"}, "tls_key = {}/absent: No such file"),
        ({"tls_cert": "server.pem", "tls_key": "ca.pem"}, "{}/ca.pem holds no private key"),
        ({"tls_cert": "server.pem", "tls_key": "ca.key"}, "ca.key is not the key of tls_cert"),
        (
            {"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "ca.key"},
            "tls_client_ca = {}/ca.key holds no certificate",
        ),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_stops_the_start_and_is_named(
    certs: Certificates, files: dict[str, str], said: str
) -> None:  # SPEC A8, A10
    folder = certs.ca.parent
    settings = load(flags={name: folder / file for name, file in files.items()})
    with pytest.raises(ConfigError, match=re.escape(said.format(folder))):
        server_context(settings)
