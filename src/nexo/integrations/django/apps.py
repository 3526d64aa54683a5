"""The Django app: its table is the outbox, its command the worker."""

from __future__ import annotations

from django.apps import AppConfig


class NexoConfig(AppConfig):
    """``INSTALLED_APPS = [..., "nexo.integrations.django"]``."""

    name = "nexo.integrations.django"
    label = "nexo"
    verbose_name = "Nexo"
    default_auto_field = "django.db.models.BigAutoField"
