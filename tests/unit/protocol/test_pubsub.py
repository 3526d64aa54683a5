"""Runs of messages: how a publisher cuts them, and how a subscriber finds them again."""

from __future__ import annotations

from nexo.protocol.frames import pack_str
from nexo.protocol.pubsub import (
    addressed_frame,
    message_frame,
    pack_runs,
    parse_pushes,
    parse_run,
)


def test_runs_are_cut_by_messages_and_by_bytes_and_lose_none() -> None:
    """SPEC C2: in order, whatever their sizes are."""
    values = [bytes([0]) + bytes([n % 7]) * (n % 50) for n in range(1_000)]
    for run_bytes, most in ((1 << 20, 256), (1_000, 256), (1 << 20, 1), (10, 10)):
        runs = list(pack_runs(b"a/b", values, 5, run_bytes, most))
        found = [pushed for run in runs for pushed in parse_pushes(run)]
        assert [message for pushed in found for message in pushed.messages] == [
            (value, 5) for value in values
        ]
        for run in runs:
            count = len(parse_run(run).topics)
            assert count <= most
            assert len(run) <= run_bytes or count == 1


def test_pushes_are_found_by_topic_and_by_whom_they_are_for() -> None:
    """SPEC C2: those of one topic in a row together; an addressed copy is by itself."""
    plain = [message_frame(topic, value, 7) for topic, value in
             ((b"a", b"\x001"), (b"a", b"\x002"), (b"b", b"\x003"), (b"a", b"\x004"))]  # fmt: skip
    addressed = addressed_frame(plain[0], pack_str("$share/g/a"))
    found = list(parse_pushes(b"".join([*plain[:3], addressed, plain[3]])))
    assert [(pushed.topic, pushed.pattern, pushed.messages) for pushed in found] == [
        (b"a", None, [(b"\x001", 7), (b"\x002", 7)]),
        (b"b", None, [(b"\x003", 7)]),
        (b"a", b"$share/g/a", [(b"\x001", 7)]),
        (b"a", None, [(b"\x004", 7)]),
    ]
