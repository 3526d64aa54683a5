"""Celery's integration tests, with Nexo as broker and result backend."""

from __future__ import annotations

from compat.suite import ONCE, Results, Suite, pytest, sources

VERSION = "5.6.3"
_OTHERS = (
    "backend", "quorum_queue_qos_cluster_simulation", "rabbitmq_chord_unlock_routing",
    "rabbitmq_default_queue_type_fallback", "rabbitmq_quorum_queue_cycle_detection",
    "native_delayed_delivery_binding",
)  # fmt: skip
"""Files about RabbitMQ and Azure alone."""


def run(port: int) -> Results:
    """Each test may take two minutes."""
    folder = sources("celery", VERSION, "COMPAT_CELERY")
    url = f"nexo://127.0.0.1:{port}"
    ignored = [f"--ignore=t/integration/test_{name}.py" for name in _OTHERS]
    variables = {"TEST_BROKER": url, "TEST_BACKEND": url}
    return pytest(folder, ["t/integration"], variables, "--timeout=120", *ONCE, *ignored)


SUITE = Suite("Celery", VERSION, run)
