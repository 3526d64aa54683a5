"""Certificates for tests, made with the openssl program."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"


@dataclass(frozen=True)
class Certificates:
    """A CA, a server for 127.0.0.1 and a client, both signed by it."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    """Certificate and key in one file."""


def make(folder: Path) -> Certificates:
    """Everything in ``folder``, as strict as Python 3.13 wants it."""
    _openssl(
        folder,
        f"req -x509 {_KEY} -subj /CN=ca -addext keyUsage=critical,keyCertSign,cRLSign "
        "-keyout ca.key -out ca.pem",
    )
    for name, extension in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "")):
        _openssl(folder, f"req {_KEY} -subj /CN={name} -keyout {name}.key -out {name}.csr")
        (folder / f"{name}.ext").write_text(extension)
        _openssl(
            folder,
            f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 "
            f"-extfile {name}.ext -out {name}.pem",
        )
    both = folder / "client-both.pem"
    both.write_text((folder / "client.pem").read_text() + (folder / "client.key").read_text())
    return Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key", both)


def _openssl(folder: Path, arguments: str) -> None:
    try:
        subprocess.run(["openssl", *arguments.split()], check=True, capture_output=True, cwd=folder)
    except FileNotFoundError:
        pytest.skip("the openssl program is not installed")
