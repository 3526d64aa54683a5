"""The outbox: tasks that were enqueued in a transaction and are not in their queue yet."""

from __future__ import annotations

from django.db import models


class OutboxTask(models.Model):
    """One task. Whoever deletes the row has seen it safe in the queue."""

    id = models.BigAutoField(primary_key=True)
    task_id = models.CharField(max_length=64, unique=True)
    backend = models.CharField(max_length=255)
    message = models.JSONField()
    headers = models.JSONField(default=dict)
    failures = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        """Where it is kept."""

        app_label = "nexo"
        db_table = "nexo_outbox"
        verbose_name = "task in the outbox"
        verbose_name_plural = "tasks in the outbox"

    def __str__(self) -> str:
        return f"{self.task_id} for {self.backend}"
