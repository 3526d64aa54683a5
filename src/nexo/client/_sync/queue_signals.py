"""Waits for the signals that ask a worker to stop; the async twin uses the event loop."""

from nexo.client.stop_signal import StopSignal

__all__ = ["StopSignal"]
