"""The probes of a real server through its life (SPEC O4)."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nexo.config.keywords import ServerSettings
from nexo.testing import Process
from tests.integration import certificates
from tests.integration.admin_api import Api
from tests.processes import broker_pids
from tests.timing import wait_until


def ready(process: Process) -> tuple[int, str]:
    reply = Api(process.health_url).request("GET", "/ready")
    return reply.status, reply.json["state"]


def test_probes_answer_in_production_with_tls(tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    settings: ServerSettings = {"env": "prod", "tls_cert": made.server, "tls_key": made.server_key}
    process = Process(tmp_path / "nexo", **settings)
    process.start()
    try:
        assert ready(process) == (200, "serving")
        assert Api(process.health_url).request("GET", "/health").status == 200
        os.kill(broker_pids(process)["queue"], signal.SIGKILL)
        wait_until(lambda: ready(process)[0] == 503)
        wait_until(lambda: ready(process)[0] == 200)
        slow = broker_pids(process)["stream"]
        os.kill(slow, signal.SIGSTOP)  # so that the drain lasts until it was seen
        with ThreadPoolExecutor(1) as pool:
            stopped = pool.submit(process.terminate)
            wait_until(lambda: ready(process) == (503, "draining"))
            os.kill(slow, signal.SIGCONT)
            assert stopped.result() == 0
    finally:
        process.close()


def test_systemd_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        os.environ["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        try:
            process = Process(tmp_path / "nexo")
            process.start()
        finally:
            del os.environ["NOTIFY_SOCKET"]
        assert manager.recv(64) == b"READY=1"
        process.terminate()
        assert manager.recv(64) == b"STOPPING=1"
        process.close()
