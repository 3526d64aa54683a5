"""Kafka's clients with TLS, on a port of their own (SPEC L2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nexo.testing
from nexo.config.keywords import ServerSettings
from nexo.testing import free_port
from tests.integration import certificates
from tests.kafka.ledger import shows
from tests.kafka.test_confluent import produced, read

pytestmark = shows("confluent-kafka", "TLS on a port of its own")


def test_clients_speak_tls_on_their_own_port(tmp_path: Path) -> None:
    certs, port = certificates.make(tmp_path), free_port()
    settings: ServerSettings = {
        "tls_cert": certs.server,
        "tls_key": certs.server_key,
        "kafka_port": port,
    }
    secure: dict[str, Any] = {"security.protocol": "SSL", "ssl.ca.location": str(certs.ca)}
    with nexo.testing.server(**settings):
        address = f"127.0.0.1:{port}"
        assert produced(address, "orders", [{"value": b"v"}], **secure) == [0]
        assert [message.value() for message in read(address, "orders", 1, **secure)] == [b"v"]
