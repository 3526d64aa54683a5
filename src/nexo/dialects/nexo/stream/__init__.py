"""The stream broker in our protocol: bytes to use cases of `nexo.services.stream`, and back."""

from nexo.dialects.nexo.stream.requests import StreamRequests

__all__ = ["StreamRequests"]
