"""Settings from the environment, so that workers in other processes have the same."""

from __future__ import annotations

import os

SECRET_KEY = "for tests"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django_tasks",
    "nexo.integrations.django",
]
_POSTGRES = os.environ.get("TEST_POSTGRES")
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "HOST": _POSTGRES,
    }
    if _POSTGRES
    else {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("TEST_SQLITE", ":memory:"),
        "OPTIONS": {"timeout": 20},
    }
}
TASKS = {
    "default": {
        "BACKEND": "nexo.integrations.django.tasks.DjangoTaskBackend",
        "QUEUES": ["default", "mails"],
        "OPTIONS": {"URL": os.environ.get("TEST_NEXO_URL", "nexo://127.0.0.1:1")},
    }
}
CACHES = {
    "default": {
        "BACKEND": "nexo.integrations.django.cache.NexoCache",
        "LOCATION": os.environ.get("TEST_NEXO_URL", "nexo://127.0.0.1:1"),
    }
}
SESSION_ENGINE = "django.contrib.sessions.backends.cache"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
