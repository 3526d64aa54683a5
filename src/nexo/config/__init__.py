"""Every setting, frozen. One table gives keys, variables, flags, reference page and errors; nothing
is read at import."""

from nexo.config.settings import DAY_MS, GIB, HOUR_MS, KIB, MIB, Settings, is_loopback
from nexo.config.sources import SETTINGS, doubtful_variables, load

__all__ = [
    "DAY_MS",
    "GIB",
    "HOUR_MS",
    "KIB",
    "MIB",
    "SETTINGS",
    "Settings",
    "doubtful_variables",
    "is_loopback",
    "load",
]
