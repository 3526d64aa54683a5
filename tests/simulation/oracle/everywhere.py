"""What holds everywhere: no unhandled exception, no mistake in a log, service after the faults."""

from __future__ import annotations

import logging
import traceback

from tests.simulation.jobs import world_now

_BY_DESIGN = ("InvalidProducerIdMapping", "KafkaError")
"""What aiokafka logs of a transaction that was open at a restart, and of lost connections."""


class LogWatch(logging.Handler):
    """Turns every logged exception that is not the operating system's into a finding."""

    def emit(self, record: logging.LogRecord) -> None:
        if not world_now:
            return
        world = world_now[0]
        text = record.getMessage()
        who = world.current.name if world.current is not None else "world"
        world.note(f"log {who} {record.name} {text}"[:200])
        if record.exc_info and record.exc_info[1] is not None and record.levelno >= logging.ERROR:
            error = record.exc_info[1]
            if (
                type(error).__name__ in _BY_DESIGN
                or type(error).__module__.startswith("nexo")
                or isinstance(error, OSError)
            ):
                return
            place = traceback.extract_tb(error.__traceback__)[-1]
            world.found(
                "logged exception",
                f"{who}: {text}: {error!r} in {place.name}, {place.filename.rsplit('/', 1)[-1]}",
            )


def watch_logs() -> None:
    """From now on; everything else that is logged is dropped."""
    root = logging.getLogger()
    root.handlers[:] = [LogWatch()]
    root.setLevel(logging.WARNING)
