"""Every kind of link over TLS."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nexo.errors import ConnectionLost, RequestTimeout
from nexo.model import Broker
from nexo.protocol.ops import Op
from tests.contract.link_drivers import ALL, Driver
from tests.contract.scripted_server import HOLD_OP, SIZED_OP, ScriptedServer


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


@pytest.fixture
def server(certificate: tuple[Path, Path]) -> Iterator[ScriptedServer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    context.set_alpn_protocols([f"nexo-{broker.label}" for broker in Broker])
    with ScriptedServer(tls=context) as server:
        yield server


@pytest.fixture(params=ALL)
def link(
    request: pytest.FixtureRequest, server: ScriptedServer, certificate: tuple[Path, Path]
) -> Iterator[Driver]:
    link = ALL[request.param](f"{server.url}?ca_file={certificate[0]}", Broker.QUEUE)
    yield link
    link.close()


def test_the_broker_is_named_in_the_handshake(server: ScriptedServer, link: Driver) -> None:
    assert link.call(Op.ECHO, b"secret") == b"secret"
    assert list(server.alpn) == ["nexo-queue"]


def test_large_replies_and_requests_pass(link: Driver) -> None:
    assert len(link.call(SIZED_OP, (2_000_000).to_bytes(4, "big")) or b"") == 2_000_000
    assert link.call(Op.ECHO, b"y" * 1_000_000) == b"y" * 1_000_000


def test_timeouts_hold(link: Driver) -> None:
    link.call(Op.ECHO, b"connected")
    with pytest.raises(RequestTimeout):
        link.call(HOLD_OP, timeout_s=0.05)
    assert link.call(Op.ECHO, b"usable") == b"usable"


def test_a_poll_can_be_cancelled_while_another_thread_reads(
    server: ScriptedServer, link: Driver
) -> None:
    poll = link.poll(HOLD_OP)
    server.wait_for(lambda: server.held)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(poll.reply)
        poll.cancel()
        assert waiting.result(10) == b""


def test_threads_share_the_connection_safely(link: Driver) -> None:
    def talk(who: int) -> bool:
        texts = [f"{who}-{turn}".encode() * 50 for turn in range(50)]
        return [link.call(Op.ECHO, text) for text in texts] == texts

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(talk, range(6)))


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_an_unknown_certificate_is_refused(
    server: ScriptedServer, make: Callable[..., Driver]
) -> None:
    link = make(f"{server.url}?while_down=fail")
    with pytest.raises(ConnectionLost, match="certificate is not trusted"):
        link.call(Op.ECHO, b"")
    link.close()
