"""A Django project that is set up once, and its backends on a fresh server for each test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from django.core.cache import caches
from django.core.management import call_command
from django.test import override_settings

from nexo.integrations.django.clients import close_all

os.environ.setdefault("TEST_SQLITE", str(Path(tempfile.mkdtemp(prefix="nexo-"), "db.sqlite3")))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.frameworks.project.settings")
django.setup()


@pytest.fixture(scope="session")
def database() -> None:
    """SQLite, which every thread has its own connection to, with the outbox's table."""
    call_command("migrate", verbosity=0)


@pytest.fixture
def project(url: str, database: None) -> Iterator[str]:
    """The Django project with its cache and tasks on a fresh server; gives the server's URL."""
    tasks = {
        "default": {
            "BACKEND": "nexo.integrations.django.tasks.DjangoTaskBackend",
            "QUEUES": ["default", "mails"],
            "OPTIONS": {"URL": url},
        },
        "stubborn": {
            "BACKEND": "nexo.integrations.django.tasks.DjangoTaskBackend",
            "OPTIONS": {"URL": url, "RETRIES": 2, "PREFIX": "stubborn/"},
        },
    }
    cache = {"BACKEND": "nexo.integrations.django.cache.NexoCache", "LOCATION": url}
    with override_settings(TASKS=tasks, CACHES={"default": cache}):
        yield url
        caches.close_all()
    close_all()
