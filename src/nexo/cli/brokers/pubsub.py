"""``nexo pubsub``: publish, subscribe, and see what is retained."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from nexo.cli import output
from nexo.cli.options import SignedGroup, as_option, client, common, limit_option, read_value
from nexo.cli.times import seconds
from nexo.client._sync.requests import request
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import Listing

if TYPE_CHECKING:
    from nexo.client.pubsub_message import Message


_AHEAD = 100
"""Messages taken ahead of printing; a slow terminal then slows the subscriptions down."""


@click.group(cls=SignedGroup)
def command() -> None:
    """Publish and subscribe."""


@command.command()
@click.argument("topic")
@click.argument("value")
@as_option
@click.option("--retain", is_flag=True, help="Keep it as the topic's last value.")
@click.option("--ttl", type=seconds(least_ms=1), help="How long to retain it: 60, 1h.")
@click.option("--count", type=click.IntRange(min=1), default=1, help="Publish it several times.")
def pub(topic: str, value: str, kind: str, retain: bool, ttl: float | None, count: int) -> None:
    """Publish VALUE to TOPIC.

    VALUE is - for standard input or @name for a file. An empty VALUE with --retain
    clears what the topic retains.
    """
    content = read_value(value, kind)
    with client() as nexo:
        receivers = 0
        for _ in range(count):
            receivers = nexo.pubsub.publish(topic, content, retain=retain, ttl=ttl)
    output.done(f"{receivers} receivers", topic=topic, receivers=receivers)


@command.command()
@click.argument("patterns", nargs=-1, required=True)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option(
    "--wait",
    "wait_s",
    type=seconds(),
    help="Stop after this long a silence; --timeout is for the server's answers.",
)
@click.option("--no-retained", is_flag=True, help="Leave out messages from before.")
@click.option(
    "--policy",
    type=click.Choice(["drop_oldest", "drop_newest", "disconnect"]),
    default="drop_oldest",
    show_default=True,
    help="What happens to messages when this command is too slow.",
)
def sub(
    patterns: tuple[str, ...],
    count: int | None,
    wait_s: float | None,
    no_retained: bool,
    policy: str,
) -> None:
    """Print messages that match any of PATTERNS as they come.

    + stands for one level, # for the rest; $share/GROUP/PATTERN takes a share of them.
    """
    arrived: Queue[Message[Any]] = Queue(_AHEAD)
    with client() as nexo:
        for pattern in dict.fromkeys(patterns):
            nexo.pubsub.subscribe(pattern, arrived.put, policy=policy, retained=not no_retained)
        for message in islice(_until_silence(arrived, wait_s), count):
            _print(message)


def _until_silence(arrived: Queue[Message[Any]], wait_s: float | None) -> Iterator[Message[Any]]:
    while True:
        try:
            yield arrived.get(timeout=wait_s)
        except Empty:
            return


@command.command()
@click.argument("pattern", default="#")
@limit_option(100)
def topics(pattern: str, limit: int) -> None:
    """List topics that had messages, the last used first."""
    with client() as nexo:
        call, asked = nexo.link(Broker.PUBSUB).call, Listing(pattern, limit)
        found = request(call, Op.PS_TOPICS, asked, list[dict[str, Any]])
    output.rows(found, ["topic", "messages"], "nothing was published yet")


@command.command()
@click.argument("pattern", default="#")
@limit_option(100)
def retained(pattern: str, limit: int) -> None:
    """List topics that retain a message."""
    with client() as nexo:
        found = nexo.pubsub.retained(pattern, limit=limit)
    output.rows(map(asdict, found), ["topic", "bytes", "expires_ms"], "nothing is retained")


@command.command()
@limit_option(100)
def subscriptions(limit: int) -> None:
    """List subscriptions, with what waits for them and what they lost."""
    with client() as nexo:
        found = nexo.pubsub.subscriptions(limit=limit)
    columns = ["client", "pattern", "policy", "waiting", "dropped"]
    output.rows(map(asdict, found), columns, "nobody is subscribed")


def _print(message: Message[Any]) -> None:
    value = message.value
    if common().as_json:
        output.line(
            {
                "topic": message.topic,
                "value": value,
                "timestamp_ms": message.timestamp_ms,
                "retained": message.retained,
            }
        )
    else:
        text = value if isinstance(value, str) else message.payload.decode(errors="replace")
        output.text(f"{message.topic} {text}")
