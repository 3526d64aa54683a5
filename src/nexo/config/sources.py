"""Loads the settings: defaults < TOML file < environment < flags (SPEC A8).

Each value is checked against its setting's type and range; an error about an unknown name
suggests the one that was most likely meant.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nexo.config import inherited, names
from nexo.config.checks import check_together
from nexo.config.settings import Settings
from nexo.errors import ConfigError
from nexo.options.described import described
from nexo.options.option import Described, Unfit

SETTINGS = described(Settings)
_VARIABLES = {each.variable: (name, each.meaning) for name, each in SETTINGS.items()}
"""Each variable's setting, and what it does."""
_NOT_SETTINGS = {"NEXO_URL", "NEXO_CONFIG", "NEXO_USER", "NEXO_PASSWORD", "NEXO_TOKEN"}


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Settings:
    """Settings from all sources; a `ConfigError` names the first unknown key or bad value."""
    given: dict[str, Any] = {}
    if file is not None:
        given |= _from_file(file)
    given |= _from_environ(environ or {})
    for key, value in (flags or {}).items():
        if value is not None:
            given[key] = checked(key, value, key)
    settings = Settings(**given)
    if settings.env == "prod" and "dashboard" not in given:
        settings = replace(settings, dashboard=False)
    check_together(settings)
    return settings


def doubtful_variables(environ: Mapping[str, str]) -> list[str]:
    """Warnings of variables without effect: nearly ours (SPEC A8), or another server's (R2)."""
    known = [*_VARIABLES, *inherited.KNOWN]
    named = ((key, _nearly(key, known)) for key in environ if key not in known)
    return inherited.warnings(environ) + [
        f"the environment variable {key} is not known; did you mean {close}?"
        for key, close in named
        if close
    ]


def _nearly(key: str, known: list[str]) -> str:
    """The one of ``known`` closest to ``key``: by letters or, in the same family, by words."""
    close = get_close_matches(key, known, 1, 0.85)
    family = key.partition("_")[0] + "_"
    alike = {env: said for env, said in _VARIABLES.items() if env.startswith(family)}
    close = close or names.meant(key, alike)
    return close[0] if len(close) == 1 else ""


def _from_file(file: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    return {key: checked(key, value, f"{file}: {key}") for key, value in table.items()}


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    renamed: dict[str, Any] = {}
    for key, value in inherited.translated(environ).items():
        if key in _VARIABLES:
            name, _ = _VARIABLES[key]
            found[name] = checked(name, value, key)
        elif (name := inherited.RENAMED.get(key, "")) or key in inherited.SECONDS:
            setting = SETTINGS[name or inherited.SECONDS[key]]
            spelled = name or setting.keyword
            renamed[setting.name] = _fitting(setting, spelled, value, key)
        elif key.startswith("NEXO_") and not _foreign(key, value):
            known = dict.fromkeys(_NOT_SETTINGS, ("", "")) | _VARIABLES
            meant = names.did_you_mean(key, known, "`nexo serve --help` names all of them")
            raise ConfigError(f"unknown environment variable {key}{meant}")
    return renamed | found


def _foreign(key: str, value: str) -> bool:
    """Variables that begin like ours but are the client's, or Kubernetes' for a service `nexo`."""
    return (
        key in _NOT_SETTINGS
        or key.startswith(("NEXO_SERVICE_", "NEXO_PORT_"))
        or (key == "NEXO_PORT" and "://" in value)
    )


def checked(key: str, value: object, label: str) -> Any:
    """``value`` as setting ``key`` takes it; ``label`` names it as the user wrote it."""
    setting = SETTINGS.get(key)
    if setting is None:
        raise ConfigError(f"unknown setting {label}{_meant_setting(key, value)}")
    return _fitting(setting, key, value, label)


def _fitting(setting: Described, name: str, value: object, label: str) -> Any:
    try:
        return setting.check(setting.read(value, name, from_text=True))
    except Unfit as error:
        raise ConfigError(setting.refusal(label, value, error)) from None


def _meant_setting(key: str, value: object) -> str:
    if isinstance(value, dict) and value.keys() & SETTINGS.keys():
        return f"; settings stand without a section: leave out [{key}]"
    known = {name: (each.variable, each.meaning) for name, each in SETTINGS.items()}
    return names.did_you_mean(key, known, f"known are {', '.join(sorted(SETTINGS))}")
