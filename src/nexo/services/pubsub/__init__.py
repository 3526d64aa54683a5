"""The pub/sub broker."""

from nexo.services.pubsub.service import PubSubService

__all__ = ["PubSubService"]
