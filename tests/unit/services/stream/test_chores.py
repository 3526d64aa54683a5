"""Long work in slices: whoever waits for it is answered, however it ends."""

from __future__ import annotations

from collections.abc import Iterator

from nexo.errors import Corrupt, NexoError
from nexo.services.stream.chores import CallWhenReady, Chores
from tests.unit.brokers.stream.desk import Desk


def failing(error: Exception) -> Iterator[CallWhenReady | None]:
    yield None
    raise error


def steps(done: list[str], name: str) -> Iterator[CallWhenReady | None]:
    yield None
    done.append(name)


def test_work_that_fails_is_answered_and_stops_no_other() -> None:  # SPEC G1, I1
    chores = Chores(Desk().service.core)
    answers: list[NexoError | None] = []
    order: list[str] = []
    chores.add(failing(Corrupt("entry 7 is damaged")), answers.append)
    chores.add(failing(OSError("a mistake in the code")), answers.append)
    chores.add(steps(order, "last"), answers.append)
    chores.run()
    damaged, mistake, fine = answers
    assert isinstance(damaged, Corrupt)
    assert isinstance(mistake, NexoError)
    assert mistake.message.startswith("internal error")
    assert (fine, order) == (None, ["last"])
