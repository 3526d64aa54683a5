"""Creates the outbox."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first state of the table."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="OutboxTask",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("task_id", models.CharField(max_length=64, unique=True)),
                ("backend", models.CharField(max_length=255)),
                ("message", models.JSONField()),
                ("headers", models.JSONField(default=dict)),
                ("failures", models.PositiveIntegerField(default=0)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "db_table": "nexo_outbox",
                "verbose_name": "task in the outbox",
                "verbose_name_plural": "tasks in the outbox",
            },
        ),
    ]
