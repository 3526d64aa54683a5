"""Django (SPEC M2): cache, tasks with a transactional outbox, and a channel layer.

| setting | value |
|---|---|
| ``CACHES`` | ``"BACKEND": "nexo.integrations.django.cache.NexoCache"`` |
| ``TASKS`` | ``"BACKEND": "nexo.integrations.django.tasks.DjangoTaskBackend"`` |
| ``CHANNEL_LAYERS`` | ``"BACKEND": "nexo.integrations.django.channels.NexoChannelLayer"`` |
| ``INSTALLED_APPS`` | ``"nexo.integrations.django"``: outbox, ``manage.py nexo_worker`` |
"""
