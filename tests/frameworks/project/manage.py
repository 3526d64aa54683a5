"""``python manage.py nexo_worker``."""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.frameworks.project.settings")
if __name__ == "__main__":
    execute_from_command_line(sys.argv)
