"""Suggests names that the server knows, after typing errors and for shell completion."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import click
from click.shell_completion import CompletionItem

from nexo.cli.options import client
from nexo.client._sync.requests import request
from nexo.errors import NexoError
from nexo.model import Broker
from nexo.model.queue import QueueSurvey
from nexo.protocol.ops import Op
from nexo.protocol.server import MAX_LIMIT, SurveyAsk

if TYPE_CHECKING:
    from nexo import Client

Lister: TypeAlias = Callable[["Client", click.Context, str], list[str]]

_MOST = 10_000
_COMPLETED = 200
"""Names offered at most."""
_QUOTED = re.compile(r"'([^']+)'")
_OF_QUEUES = {"queue", "dlq"}
_OF_STREAMS = {"stream", "tail", "lag", "seek"}


def names_like(message: str, command: str) -> str:
    """A question to append to ``message``, about names like the one it quotes; or nothing."""
    quoted = _QUOTED.search(message)
    if quoted is None or command not in _OF_QUEUES | _OF_STREAMS:
        return ""
    try:
        with client() as nexo:
            known = _queues(nexo) if command in _OF_QUEUES else _streams(nexo)
    except NexoError:  # the first error is the one to report
        return ""
    if quoted[1] in known:
        return ""
    close = get_close_matches(quoted[1], known, n=3)
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


def complete_names(command: click.Command, name: str) -> None:
    """Have a shell complete the arguments of ``nexo NAME …`` that name something."""
    if isinstance(command, click.Group):
        for child in command.commands.values():
            complete_names(child, name)
    for param in command.params:
        if not isinstance(param, click.Argument) or param.nargs != 1:
            continue
        lister = _LISTERS.get((name, param.name or "")) or _LISTERS.get(("", param.name or ""))
        if lister is not None:
            param.shell_complete = partial(_complete, lister)  # type: ignore[method-assign]


def _complete(lister: Lister, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Names that begin with what was typed; a server that does not answer has none."""
    try:
        with client() as nexo:
            found = [one for one in lister(nexo, ctx, incomplete) if one.startswith(incomplete)]
    except NexoError:
        return []
    return [CompletionItem(one) for one in found[:_COMPLETED]]


def _queues(nexo: Client, *_: object) -> list[str]:
    ask = SurveyAsk(limit=MAX_LIMIT, by_name=True)
    page = request(nexo.link(Broker.QUEUE).call, Op.Q_SURVEY, ask, QueueSurvey)
    return [info.name for info in page.queues]


def _streams(nexo: Client, ctx: click.Context | None = None, prefix: str = "") -> list[str]:
    return list(islice(nexo.streams(prefix), _MOST))


def _groups(nexo: Client, ctx: click.Context, prefix: str) -> list[str]:
    stream = ctx.params.get("stream")
    return [group.name for group in nexo.stream(stream).groups()] if stream else []


def _keys(nexo: Client, ctx: click.Context, prefix: str) -> list[str]:
    return list(islice(nexo.store.keys(prefix), _COMPLETED))


_LISTERS: Mapping[tuple[str, str], Lister] = {
    ("queue", "name"): _queues,
    ("dlq", "name"): _queues,
    ("", "queue"): _queues,
    ("stream", "name"): _streams,
    ("", "stream"): _streams,
    ("", "group"): _groups,
    ("store", "key"): _keys,
    ("store", "name"): _keys,
}
"""By command and argument; of any command where the first is empty."""
