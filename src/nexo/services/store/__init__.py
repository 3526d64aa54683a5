"""The store broker."""

from nexo.services.store.service import StoreService

__all__ = ["StoreService"]
