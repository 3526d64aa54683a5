"""kafka-python's integration tests."""

from __future__ import annotations

from compat.suite import AGAIN, Results, Suite, pytest, sources

VERSION = "3.1.0.dev"
_FILES = ("admin", "consumer", "producer")
"""Others start a broker of their own, with a login or TLS."""


def run(port: int) -> Results:
    """Against a broker that is there already."""
    folder = sources("kafka-python", VERSION, "COMPAT_KAFKA_PYTHON")
    (folder / "test" / "__init__.py").touch()  # or Python's own package of this name is meant
    variables = {
        "KAFKA_VERSION": "4.1.0", "KAFKA_URI": f"kafka://127.0.0.1:{port}",
        "KAFKA_ROOT": str(folder),  # where it would start a broker's programs
    }  # fmt: skip
    paths = [f"test/integration/test_{name}_integration.py" for name in _FILES]
    return pytest(folder, paths, variables, "--timeout=120", AGAIN)


SUITE = Suite("kafka-python", VERSION, run, {"KAFKA_NUM_PARTITIONS": "4"})
