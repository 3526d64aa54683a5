"""Waits for the signals that ask a worker to stop; the sync twin is written by hand."""

from __future__ import annotations

import asyncio
from signal import SIGINT, SIGTERM


async def stop_signal() -> None:
    """Return when the process is asked to stop: SIGTERM or Ctrl-C."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (SIGTERM, SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await stop.wait()
    finally:
        for number in (SIGTERM, SIGINT):
            loop.remove_signal_handler(number)
