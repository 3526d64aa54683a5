"""Every setting, frozen. One table gives keys, variables, flags, reference page and errors; nothing
is read at import."""

from nexo.config.settings import DAY_MS, GIB, HOUR_MS, KIB, MIB, Settings
from nexo.config.sources import doubtful_variables, load

__all__ = ["DAY_MS", "GIB", "HOUR_MS", "KIB", "MIB", "Settings", "doubtful_variables", "load"]
