"""Who publishes numbers to a topic, and who hears them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from nexo.errors import NexoError
from tests.simulation.clients.actor import Actor
from tests.simulation.oracle.pubsub import TopicModel


class Announcer(Actor):
    """Publishes growing numbers, and hears its own and others'."""

    think_s = (0.0, 0.4)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._topic = f"news/{self.name}"
        self._model = self._of(self._topic)
        self._messages: Any = None
        self._listened = 0

    def _of(self, topic: str) -> TopicModel:
        return self.system.model(topic, lambda: TopicModel(self.world, topic))

    async def begin(self) -> None:
        self._messages = await self.client.pubsub.subscribe("news/#", retained=False)

    async def act(self) -> None:
        model, asked_s = self._model, self.world.now_s
        sent = []
        for _ in range(self.chance.choice((1, 1, 4))):
            model.asked += 1
            sent.append(
                (model.asked, self.client.pubsub.publish(self._topic, model.asked, retain=True))
            )
        for number, work in sent:
            if (await self.attempt(f"publish {number}", work)).ok:
                model.published(number, asked_s)
        with contextlib.suppress(NexoError):
            while True:
                message = await self._messages.get(0)
                self._of(message.topic).hears(self.name, int(message.value))

    async def check(self) -> None:
        await asyncio.sleep(5)
        messages = await self.until_served(lambda: self.client.pubsub.subscribe(self._topic), 30)
        retained: int | None = None
        with contextlib.suppress(NexoError):
            retained = int((await messages.get(5)).value)
        self._model.at_end(retained)
