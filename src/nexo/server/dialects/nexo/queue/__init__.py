"""The queue broker as the host runs it."""

from nexo.server.dialects.nexo.queue.service import QueueService

__all__ = ["QueueService"]
