"""The queue broker as the host runs it."""

from nexo.services.queue.service import QueueService

__all__ = ["QueueService"]
