"""Loads certificate files; an error names the option that the file came from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nexo.errors import InvalidOption

if TYPE_CHECKING:
    import ssl


def load_chain(
    context: ssl.SSLContext,
    cert: tuple[str, Path],
    key: tuple[str, Path] | None = None,
    key_option: str = "",
) -> None:
    """Load a certificate to show; each file comes with the option that names it.

    Without ``key``, the certificate's file holds the key too; ``key_option`` is for the error.
    """
    from ssl import SSLError  # noqa: PLC0415 - slow to import, and most connections do without

    texts = [_read(*given) for given in (cert, key) if given is not None]
    if b"CERTIFICATE-----" not in texts[0]:
        raise InvalidOption(f"{_named(cert)} holds no certificate (PEM)")
    if b"PRIVATE KEY-----" not in texts[-1]:
        hint = f": name its file with {key_option}" if key is None and key_option else ""
        raise InvalidOption(f"{_named(key or cert)} holds no private key (PEM){hint}")
    try:
        context.load_cert_chain(cert[1], key[1] if key else None)
    except SSLError as error:
        raise InvalidOption(_unusable(error, cert, key or cert)) from None


def _unusable(error: ssl.SSLError, cert: tuple[str, Path], key: tuple[str, Path]) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"{_named(key)} is not the key of {_named(cert)}"
    return f"{_named(cert)} or its key cannot be used: {error}"


def checked_ca(option: str, path: Path) -> Path:
    """Load a file of certificates to trust."""
    if b"CERTIFICATE-----" not in _read(option, path):
        raise InvalidOption(f"{option} = {path} holds no certificate (PEM)")
    return path


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidOption(f"{option} = {path}: {error.strerror}") from None


def _named(given: tuple[str, Path]) -> str:
    return f"{given[0]} = {given[1]}"
