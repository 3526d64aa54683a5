"""Azure's API of blobs on loopback, from npm's `azurite`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from uuid import uuid4

from tests.kafka.ledger import node_modules

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The emulator's own, the same everywhere."""


class AzureServer:
    """Containers in files."""

    def __init__(self, port: int) -> None:
        self._port = port

    def environment(self) -> dict[str, str]:
        """What clients of it need."""
        return {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{self._port}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        }

    def container(self) -> str:
        """Make a container; returns its name."""
        name = f"container-{uuid4().hex[:8]}"
        assert self._make(name) == 201
        return name

    def _make(self, container: str) -> int:
        own = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        signed = "\n".join(
            ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in own.items()),
             f"/{ACCOUNT}/{ACCOUNT}/{container}", "restype:container"]
        )  # fmt: skip
        proof = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
        login = f"SharedKey {ACCOUNT}:{base64.b64encode(proof).decode()}"
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            path = f"/{ACCOUNT}/{container}?restype=container"
            connection.request("PUT", path, headers={**own, "Authorization": login})
            return connection.getresponse().status
        finally:
            connection.close()


@contextmanager
def azure_server(folder: Path) -> Iterator[AzureServer]:
    """One that runs, on a free port; its files are in ``folder``."""
    program = node_modules("azurite") / ".bin" / "azurite-blob"
    command = [str(program), "--skipApiVersionCheck", "--location", str(folder), "--blobPort", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        said = next(line for line in running.stdout if "successfully listens on" in line)
        threading.Thread(target=running.stdout.read, daemon=True).start()
        try:
            yield AzureServer(int(said.rpartition(":")[2]))
        finally:
            running.terminate()
