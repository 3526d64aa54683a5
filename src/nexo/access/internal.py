"""The token with which processes of one server log in to each other; new in every run.

It is in the run folder, which only this server's user may enter.
"""

from __future__ import annotations

from pathlib import Path

from nexo.access import secrets

_NAME = "internal.token"


def write_token(run_folder: Path) -> None:
    path = run_folder / _NAME
    path.touch(mode=0o600)
    path.write_text(secrets.new_token(), encoding="ascii")


def read_token(run_folder: Path | None) -> str | None:
    try:
        return (run_folder / _NAME).read_text("ascii") if run_folder else None
    except FileNotFoundError:
        return None
