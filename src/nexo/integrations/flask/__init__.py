"""Flask (SPEC M4): one client per app and process.

A client connects with its first request and survives a fork, so an app that a server loads and
then forks (gunicorn with ``--preload``, uWSGI) needs nothing else.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Lock
from typing import Any, Unpack

import msgspec
from flask import Flask, Response, current_app

import nexo
from nexo.client._sync.pubsub.pubsub import PubSub
from nexo.client._sync.queue.queue import Queue
from nexo.client._sync.store.store import Store
from nexo.client._sync.stream.stream import Stream
from nexo.client.checks import seconds
from nexo.errors import NexoError, RequestTimeout
from nexo.options.units import Duration
from nexo.types import Message, SubscribeOptions, Subscription

_KEEP_ALIVE_S = 15.0


class FlaskNexo:
    """``nexo = FlaskNexo(app)``, or ``init_app`` in a factory; ``nexo.queue("mails").push(…)``.

    ``app.config["NEXO_URL"]`` is the server, ``app.config["NEXO_OPTIONS"]`` further options of
    `nexo.Client`. Without a URL the environment's ``NEXO_URL`` or a local server is used.
    """

    def __init__(self, app: Flask | None = None) -> None:
        self._guard = Lock()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Give ``app`` a client; it is made when first used."""
        app.config.setdefault("NEXO_URL", None)
        app.config.setdefault("NEXO_OPTIONS", {})
        app.extensions["nexo"] = _Holder()

    @property
    def client(self) -> nexo.Client:
        """The client of the current app."""
        holder: _Holder = current_app.extensions["nexo"]
        with self._guard:
            if holder.client is None:
                made = nexo.Client(
                    current_app.config["NEXO_URL"], **current_app.config["NEXO_OPTIONS"]
                )
                holder.client = made
                holder.finalizer = weakref.finalize(holder, _close, made)
            return holder.client

    def close(self) -> None:
        """End the connections of the current app; they come back when used."""
        holder: _Holder = current_app.extensions["nexo"]
        with self._guard:
            if holder.finalizer is not None:
                holder.finalizer()
            holder.client = holder.finalizer = None

    @property
    def store(self) -> Store:
        return self.client.store

    @property
    def pubsub(self) -> PubSub:
        return self.client.pubsub

    def queue(self, name: str, type_: Any = None) -> Queue[Any]:
        return self.client.queue(name, type_)

    def stream(self, name: str, type_: Any = None) -> Stream[Any]:
        return self.client.stream(name, type_)

    def events(
        self,
        pattern: str,
        *,
        data: Callable[[Message[Any]], str] | None = None,
        keep_alive: Duration = _KEEP_ALIVE_S,
        type_: Any = None,
        **options: Unpack[SubscribeOptions],
    ) -> Response:
        """Server-sent events: what is published to ``pattern``, until the browser leaves.

        ``data(message)`` is an event's text, JSON of the value by default. WSGI does not
        report when a browser leaves, so a comment is sent every ``keep_alive``: if that fails, the
        subscription ends. It occupies a thread of the server; for many browsers use ASGI.
        """
        pause_s = seconds(keep_alive) or _KEEP_ALIVE_S
        subscription = self.pubsub.subscribe(pattern, type_=type_, **options)
        write = data or _json

        def lines() -> Iterator[str]:
            with subscription:
                yield ": ready\n\n"
                while True:
                    try:
                        yield event(write(subscription.get(pause_s)))
                    except RequestTimeout:
                        yield ": nothing new\n\n"
                    except nexo.errors.ConnectionLost:
                        return  # the client was closed

        response = Response(lines(), mimetype="text/event-stream")
        response.headers["Cache-Control"] = "no-cache"
        response.call_on_close(lambda: _close(subscription))
        return response


class _Holder:
    """An app's client; in ``app.extensions``, so that it ends with the app."""

    def __init__(self) -> None:
        self.client: nexo.Client | None = None
        self.finalizer: Callable[[], object] | None = None


def event(text: str) -> str:
    """A server-sent event of ``text``, which may have several lines."""
    return "".join(f"data: {line}\n" for line in text.split("\n")) + "\n"


def _json(message: Message[Any]) -> str:
    return msgspec.json.encode(message.value).decode()


def _close(what: nexo.Client | Subscription[Any]) -> None:
    with suppress(NexoError):
        what.close()
