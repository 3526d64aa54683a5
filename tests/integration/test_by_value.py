"""Queue, stream and pub/sub take handlers in the documents' form (SPEC D3, F5, C2)."""

from __future__ import annotations

import nexo
from tests.timing import wait_until


def test_queue_stream_and_pubsub_take_it_alike(nexo_url: str) -> None:
    got: list[object] = []
    with nexo.connect(nexo_url) as client:
        jobs, events = client.queue("q").create(), client.stream("s").create()
        topic = client.pubsub.subscribe("t", nexo.by_value(got.append))
        short = client.pubsub("t").subscribe(nexo.by_value(got.append))  # it has the value anyway
        client.pubsub.publish("t", "news")
        jobs.push("work")
        events.publish("history")
        subscriptions = [
            jobs.subscribe(nexo.by_value(got.append)),
            events.subscribe("g", nexo.by_value(got.append)),
        ]
        wait_until(lambda: len(got) == 4)
        for subscription in [*subscriptions, topic, short]:
            subscription.close()
    assert sorted(map(str, got)) == ["history", "news", "news", "work"]
