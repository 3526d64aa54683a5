"""The stream broker's service: requests in, engine calls, durable replies out."""

from nexo.server.dialects.nexo.stream.service import StreamService

__all__ = ["StreamService"]
