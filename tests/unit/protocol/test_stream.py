"""Fields of requests that are maps keep their names on the wire."""

from __future__ import annotations

import msgspec

from nexo.protocol import stream as wire


def test_parked_records_are_chosen_by_spans() -> None:
    request = wire.ParkedSettle(stream="s", group="g", verb="replay", ranges=[(0, 1, 2)])
    sent = msgspec.msgpack.decode(wire.pack(request))
    assert sent == {"stream": "s", "group": "g", "verb": "replay", "spans": [[0, 1, 2]]}
