"""SQL asked over HTTP: each query runs in a process of its own, `nexo.cli.lake.sql_answer`.

So it can be stopped at any moment, its memory is bounded, and it slows nobody down. It logs in as
the caller, so the brokers decide what it may read, and reaches no file but those of the streams
that the query names.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from nexo import limits
from nexo.admin.context import ApiContext
from nexo.client.address import Address
from nexo.errors import Overloaded, RequestTimeout, Unavailable, from_wire
from nexo.options.units import duration_text

_COMMAND = (sys.executable, "-m", "nexo.cli.lake.sql_answer")
_running: set[Process] = set()


class QueryQuestion(msgspec.Struct, frozen=True):
    """A query, and all that its process needs to know."""

    query: str
    address: Address
    lake_folder: str
    lake_catalog: str
    limit: int
    as_of_ms: int | None = None
    plan: bool = False


class QueryColumn(msgspec.Struct, frozen=True):
    """A column of a query's result."""

    name: str
    type: str


class QueryAnswer(msgspec.Struct):
    """The result of the query, or the reason of its refusal."""

    columns: list[QueryColumn] = []
    rows: list[list[Any]] = []
    more: bool = False
    """There are further rows."""
    plan: str = ""
    code: str = ""
    """Of the error; empty if there was none."""
    message: str = ""


def question(
    context: ApiContext, query: str, limit: int, as_of_ms: int | None, plan: bool
) -> QueryQuestion:
    """A query as this caller may ask it."""
    settings, who = context.place.settings, context.who
    address = replace(
        context.place.brokers,
        caller=who.caller,
        user=who.user,
        password=who.password,
        token=who.token,
        client="dashboard",
        while_down="fail",
    )
    folder, catalog = str(settings.lake_folder), settings.lake_catalog
    return QueryQuestion(query, address, folder, catalog, limit, as_of_ms, plan)


async def answer(asked: QueryQuestion, timeout_s: float) -> QueryAnswer:
    """The answer to a query; raises its error. Cancelling it ends the query."""
    if len(_running) >= limits.HTTP_QUERIES:
        raise Overloaded(f"{limits.HTTP_QUERIES} queries are running: try again in a moment")
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
    )
    _running.add(process)
    try:
        async with asyncio.timeout(timeout_s):
            written, _ = await process.communicate(msgspec.json.encode(asked))
    except TimeoutError:
        raise RequestTimeout(
            f"the query took longer than {duration_text(int(timeout_s * 1000))}: "
            "ask about less, or allow more time"
        ) from None
    finally:
        _running.discard(process)
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
    return _checked(written)


def _checked(written: bytes) -> QueryAnswer:
    try:
        found = msgspec.json.decode(written, type=QueryAnswer)
    except msgspec.DecodeError:  # killed, most likely for its memory
        raise Unavailable("the query's process ended: ask about less") from None
    if found.code:
        raise from_wire(found.code, found.message)
    return found
