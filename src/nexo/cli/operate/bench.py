"""``nexo bench``: how fast this server is from here."""

from __future__ import annotations

import secrets
from dataclasses import asdict

import click

import nexo
from nexo.cli import output, reachable
from nexo.cli.operate.bench_work import Bench, WorkResult
from nexo.cli.options import terms
from nexo.cli.sizes import seconds
from nexo.server import loops


@click.command()
@click.option("--seconds", type=seconds(least_ms=10), default="1s", show_default=True,
              help="How long each piece of work runs.")  # fmt: skip
@click.option("--size", type=click.IntRange(min=1, max=1024**2), default=100, show_default=True,
              help="Bytes of each value.")  # fmt: skip
def command(seconds: float, size: int) -> None:
    """Measure the server from here with one client: rates per broker.

    What it makes there begins with nexo-bench- and is removed again: it takes permission to
    read, write and administer such names. `make bench` compares with other brokers.
    """
    reachable.check(terms().url)
    found = loops.run(_measure(seconds, size))
    rows = [asdict(result) | {"per_s": round(result.per_s)} for result in found]
    output.rows(rows, ("work", "per_s", "note"))


async def _measure(seconds: float, size: int) -> list[WorkResult]:
    async with nexo.AsyncClient(terms().url, **terms().client_options()) as client:
        name, found = f"nexo-bench-{secrets.token_hex(4)}", []
        async with Bench(client, name, bytes(size), seconds) as bench:
            with output.progress("measuring", len(bench.works)) as bar:
                for work in bench.works:
                    found.append(await work())
                    bar.advance()
        return found
