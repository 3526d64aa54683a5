"""``nexo replica``: who leads, how far behind the others are, and moving the lead on purpose."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from nexo import config
from nexo.cli import output
from nexo.cli.options import config_option
from nexo.errors import ConfigError, Conflict, NotFound, Unavailable
from nexo.model import Broker
from nexo.replication import lease as leases
from nexo.replication.lease import LeaderLease, Standby
from nexo.replication.objects import LOG, ObjectsBelow, ObjectStore, StoreFailed, next_number
from nexo.replication.stores import open_store

_URL = click.argument("url", required=False)
_CONFIG = config_option("Settings that name the store.")


@click.group()
def command() -> None:
    """Servers that replicate to one object store.

    URL is the address of the store; it defaults to the setting `replicate`, or NEXO_REPLICATE.
    """


def _open(url: str | None, file: Path | None) -> ObjectStore:
    settings = config.load(file, os.environ, {})
    url = url or settings.replicate
    if not url:
        raise ConfigError("which store? give its URL, or set NEXO_REPLICATE")
    return open_store(url, settings.replicate_key_file)


@contextmanager
def asking_store() -> Iterator[None]:
    """Report a store that fails as `Unavailable`."""
    try:
        yield
    except StoreFailed as error:
        raise Unavailable(f"the object store does not answer: {error}") from None


def _newest(store: ObjectStore) -> tuple[int, LeaderLease]:
    found = leases.newest(store)
    if found is None:
        raise NotFound("no server has ever led in this store: start one with --replicate")
    return found


@command.command()
@_URL
@_CONFIG
def status(url: str | None, file: Path | None) -> None:
    """Who leads, since when its lease is renewed, and where each log and standby is."""
    store = _open(url, file)
    with asking_store():
        number, lease = _newest(store)
        standbys = leases.standbys(store)
        logs = {each.label: ObjectsBelow(store, f"{each.label}/") for each in Broker}
        heads = {name: log_end(log) for name, log in logs.items()}
    others = [
        _standby_row(each, heads) for each in standbys.values() if each.server != lease.server
    ]
    rows = [_leader_row(lease, number), *others]
    output.rows(rows, ["address", "role", "server", "heard_ms", "objects_behind"])


def _leader_row(lease: LeaderLease, number: int) -> dict[str, object]:
    age_ms = _age_ms(lease.time_ms)
    role = "released" if lease.released else "expired" if age_ms > lease.lease_ms else "leader"
    return {
        "address": lease.address, "role": role, "server": lease.server, "heard_ms": age_ms,
        "objects_behind": 0, "lease": number, "term": lease.term,
    }  # fmt: skip


def _standby_row(standby: Standby, heads: dict[str, int]) -> dict[str, object]:
    applied = standby.applied
    behind = sum(max(0, head - applied.get(name, 0)) for name, head in heads.items())
    return {
        "address": standby.address, "role": "standby", "server": standby.server,
        "heard_ms": _age_ms(standby.time_ms), "objects_behind": behind,
    }  # fmt: skip


def _age_ms(time_ms: int) -> int:
    return max(0, int(time.time() * 1000) - time_ms)


def log_end(log: ObjectStore) -> int:
    """The number that the next object of a broker's log gets."""
    return next_number(log, LOG)


@command.command()
@_URL
@_CONFIG
@click.option("--to", default="", help="The standby's server id or address.  [default: any]")
@click.option("--timeout", "timeout_s", default=30.0, help="Seconds to wait for the new leader.")
def promote(url: str | None, file: Path | None, to: str, timeout_s: float) -> None:
    """Have the leader stop, ship everything, and a standby take over, without loss."""
    store = _open(url, file)
    with asking_store():
        _, lease = _newest(store)
        standbys = leases.standbys(store)
        names = {s.server for s in standbys.values() if to in ("", s.server, s.address)}
        if not names:
            raise Conflict("there is no such standby: nexo replica status lists them")
        leases.ask_handover(store, lease.term, min(names) if to else "")
        new = _await_leader(store, lease, timeout_s)
    output.done(f"{new.address} leads", leader=new.address, server=new.server)


def _await_leader(store: ObjectStore, old: LeaderLease, timeout_s: float) -> LeaderLease:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        _, lease = _newest(store)
        if lease.server != old.server:
            return lease
        time.sleep(0.2)
    raise Unavailable(f"{old.address} still has the lease after {timeout_s:g} s: see its log")
