"""The stream broker's service: requests in, engine calls, durable replies out."""

from nexo.services.stream.service import StreamService

__all__ = ["StreamService"]
