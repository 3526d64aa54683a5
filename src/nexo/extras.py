"""The package's extras: what each one brings, and what to say when it is missing.

``pip install nexo-broker`` is the client. Everything else is an extra, so that an application
does not carry a web server, an event loop and a terminal library along.
"""

from __future__ import annotations

from importlib.util import find_spec

from nexo.errors import ConfigError

_MODULES = {
    "cli": ("click", "rich"),
    "server": ("cronsim", "prometheus_client", "starlette", "uvicorn"),
    "spark": ("pyspark", "pyarrow", "pyiceberg", "fastavro"),
    "sql": ("duckdb", "pyarrow", "pyiceberg"),
}
"""The modules that each cannot do without."""
_NEEDS = {
    "cli": "the nexo command needs",
    "server": "the server needs",
    "spark": "the pipeline needs",
    "sql": "the dashboard's SQL needs",
}


def hint(missing: str, extra: str) -> str:
    """The text of an error that names the extra to install."""
    return f"{missing} is not installed: pip install 'nexo-broker[{extra}]'"


def missing(error: ModuleNotFoundError) -> ConfigError | None:
    """The error for a missing module of the lake; None for any other module."""
    name = (error.name or "").partition(".")[0]
    return ConfigError(hint(name, "spark")) if name in _MODULES["spark"] else None


def require(extra: str) -> None:
    """Raise `ConfigError` if a module of this extra is missing."""
    missing = next((name for name in _MODULES[extra] if find_spec(name) is None), None)
    if missing is not None:
        raise ConfigError(hint(f"{_NEEDS[extra]} {missing}, which", extra))
